package attention

import (
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/table"
)

// TestF32x2Table says that each row for float32 on matrices fits
// the devices of its family, and is what some problem gets; and that a device
// with float16 matrices takes float32 on them up to head_dim 128.
func TestF32x2Table(t *testing.T) {
	reached := make(map[*fwdRow]bool)
	for _, d := range fakeDevices() {
		for headDim := 8; headDim <= 256; headDim += 8 {
			for _, seq := range []int{1, 32768} {
				p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: seq, SeqKV: seq, HeadDim: headDim, DType: dtype.Float32}
				for _, impl := range d.f16 {
					row, err := fwdTable.Find(&d.caps, &p, &table.Query[Config]{}, impl.String())
					if matrices := impl == CoopMat2 || impl == CoopMat; matrices && headDim <= 128 && err != nil {
						t.Errorf("%s: head_dim %d: %v", d.caps.Name, headDim, err)
					}
					reached[row] = true
				}
			}
		}
		for i := range fwdF32x2Rows {
			row := &fwdF32x2Rows[i]
			p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: row.Shape.headDim, DType: dtype.Float32}
			if err := row.Config.Feasible(&d.caps, p); row.Family == d.family && d.family != "" && err != nil {
				t.Errorf("row %d, %s %v, on %s: %v", i, row.Family, row.Config, d.caps.Name, err)
			}
		}
	}
	for i := range fwdTable.Rows {
		if row := &fwdTable.Rows[i]; row.Formats == table.OfFloat32 && !reached[row] {
			t.Errorf("row %d is never chosen: %+v", i, row)
		}
	}
}
