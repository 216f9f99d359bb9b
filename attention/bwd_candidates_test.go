package attention

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// TestBackwardCandidates says that candidates and variants are feasible, different, not too
// many, and led by the table's choice.
func TestBackwardCandidates(t *testing.T) {
	for _, d := range fakeDevices() {
		for _, headDim := range []int{8, 64, 128, 256} {
			for _, dt := range dtype.All() {
				p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 512, SeqKV: 64, HeadDim: headDim, DType: dt}
				for _, impl := range Impls() {
					list := backwardCandidates(&d.caps, p, impl)
					start, err := chooseBackward(&d.caps, p, Options{Impl: impl})
					if err != nil {
						require.Empty(t, list)
						continue
					}
					require.Equal(t, start, list[0], "%s %v", d.caps.Name, p)
					require.Greater(t, len(list), 2, "%s %v %v", d.caps.Name, p, impl)
					require.Less(t, len(list), 200)
					require.True(t, different(list), "%s %v %v", d.caps.Name, p, impl)
					for i, c := range list {
						require.NoError(t, c.Feasible(&d.caps, p))
						require.Equal(t, impl, c.Impl)
						if i%7 != 0 {
							continue
						}
						variants := backwardVariants(&d.caps, p, c)
						require.True(t, different(append(variants, c)), "%s %v %v", d.caps.Name, p, c)
						for _, v := range variants {
							require.NoError(t, v.Feasible(&d.caps, p))
						}
					}
				}
			}
		}
	}
}

// different reports whether no two of a list are equal.
func different[T comparable](list []T) bool {
	seen := make(map[T]bool, len(list))
	for _, x := range list {
		seen[x] = true
	}
	return len(seen) == len(list)
}

// TestBackwardCandidatesVary says that every choice of a configuration and of its tiles is tried
// on some path.
func TestBackwardCandidatesVary(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	values := map[string][]any{}
	var note func(v reflect.Value, prefix string)
	note = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			name := prefix + v.Type().Field(i).Name
			if v.Field(i).Kind() == reflect.Struct {
				note(v.Field(i), name+".")
			} else if x := v.Field(i).Interface(); !slices.Contains(values[name], x) {
				values[name] = append(values[name], x)
			}
		}
	}
	for _, impl := range []Impl{CoopMat2, Scalar} {
		for _, batch := range []int{1, 16} {
			p := Problem{Batch: batch, NumHeads: 16, NumKVHeads: 4, SeqQ: 512, SeqKV: 1024, HeadDim: 64, DType: dtype.Float16}
			for i, c := range backwardCandidates(&caps, p, impl) {
				note(reflect.ValueOf(c), "")
				if i%5 == 0 || c.fused() || c.stored() {
					for _, v := range backwardVariants(&caps, p, c) {
						note(reflect.ValueOf(v), "")
					}
				}
			}
		}
	}
	for name, seen := range values {
		least := 2
		switch name {
		case "DKV.Detour", "DQ.Detour", "Fused.Detour", "Stored.Detour": // for tests only
			least = 1
		case "Stored.Threads", "Stored.ThreadsX", "Stored.Own", "Stored.Depth", "Stored.Slice", "Stored.Prefetch", "Stored.PeelMask": // likewise
			least = 1
		case "Fused.Threads", "Fused.ThreadsX", "Fused.Own", "Fused.Depth", "Fused.Slice": // of path scalar, which has none
			least = 1
		}
		require.GreaterOrEqual(t, len(seen), least, name)
	}
}

// TestBackwardTableRow has the row of a configuration as the table has it.
func TestBackwardTableRow(t *testing.T) {
	caps := nvidia("NVIDIA A30", 56, true)
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 512, SeqKV: 512, HeadDim: 64, DType: dtype.BFloat16, Causal: true}
	tile := BackwardTile{Subgroups: 4, RowTiles: 2, Stream: 32, PeelMask: true}
	require.Equal(t, `{Family: "ampere", Formats: table.Of16Bits, Shape: shape{headDim: 64, causal: true}, Fill: 0.57, Config: BackwardConfig{Impl: CoopMat2, DKV: BackwardTile{Stream: 32, Subgroups: 4, RowTiles: 2, PeelMask: true}, DQ: BackwardTile{Stream: 32, Subgroups: 4, RowTiles: 2, PeelMask: true}}},`,
		backwardTableRow(&caps, p, BackwardConfig{Impl: CoopMat2, DKV: tile, DQ: tile}, bwdSpace.Fill(&caps, p, BackwardConfig{Impl: CoopMat2, DKV: tile, DQ: tile})))
	require.Equal(t, `{Family: "ampere", Formats: table.Of16Bits, Shape: shape{headDim: 64, causal: true}, Config: BackwardConfig{Impl: CoopMat, Fused: BackwardTile{Stream: 32, Subgroups: 4, RowTiles: 2, PeelMask: true}}},`,
		backwardTableRow(&caps, p, BackwardConfig{Impl: CoopMat, Fused: tile, Splits: 3}, 0))
}
