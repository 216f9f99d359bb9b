package attention

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/table"
)

// TestBackwardTables says that each row of the backward tables fits the devices of its
// family, and is what some problem gets; and that a device with float16 matrices takes
// float32 on them up to head_dim 128.
func TestBackwardTables(t *testing.T) {
	reached := make(map[*bwdRow]bool)
	for _, d := range fakeDevices() {
		// What the paths need beside matrices, and the fakes leave at the least.
		d.caps.MaxStorageBuffers = max(d.caps.MaxStorageBuffers, fusedTensors)
		d.caps.MaxPushConstantsBytes = max(d.caps.MaxPushConstantsBytes, 256)
		for _, format := range []dtype.DType{dtype.Float16, dtype.Float32} {
			p := Problem{NumHeads: 16, NumKVHeads: 16, DType: format}
			for p.HeadDim = 8; p.HeadDim <= 256; p.HeadDim += 8 {
				for _, size := range [][3]int{{4, 1, 64}, {4, 512, 64}, {4, 32768, 64}, {4, 1, 32768}, {4, 512, 32768}, {4, 32768, 32768}, {16, 512, 64}} {
					p.Batch, p.SeqQ, p.SeqKV = size[0], size[1], size[2]
					for _, impl := range append(slices.Clone(d.f16), Unfused) {
						for _, p.Causal = range []bool{false, true} {
							row, err := bwdTable.Find(&d.caps, &p, &table.Query[BackwardConfig]{}, impl.String())
							if impl != Unfused && p.HeadDim <= 128 {
								require.NoError(t, err, "%s: %v, %v", d.caps.Name, impl, p)
							}
							reached[row] = true
						}
					}
				}
			}
		}
		for _, x := range []struct {
			rows   []bwdRow
			format dtype.DType
		}{{bwdRows, dtype.Float16}, {bwdF32x2Rows, dtype.Float32}} {
			for _, row := range x.rows {
				p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: row.Shape.headDim, DType: x.format}
				if row.Family == d.family && d.family != "" {
					require.NoError(t, row.Config.Feasible(&d.caps, p), "%s: %v", d.caps.Name, row)
				}
			}
		}
	}
	for i := range bwdTable.Rows {
		require.True(t, reached[&bwdTable.Rows[i]], "row %d is never chosen: %+v", i, bwdTable.Rows[i])
	}
}
