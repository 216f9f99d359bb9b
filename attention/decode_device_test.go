package attention_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// uploaded returns tensors of a call on a device, contiguous, from the values of Inputs.
func uploaded(t *testing.T, dev *vk.Device, c call.Call, x call.Values) map[string]vk.Tensor {
	list := map[string]vk.Tensor{}
	for _, in := range c.Tensors() {
		if in.Off {
			continue
		}
		y := vktest.Tensor(t, dev, in.DType, in.Shape...)
		list[in.Name] = y
		if in.Role == call.Output || in.Role == call.Gradient {
			continue
		}
		if in.DType == dtype.Int32 {
			require.NoError(t, y.UploadInts(t.Context(), numbers[int32](x[in.Name])))
		} else {
			require.NoError(t, y.Upload(t.Context(), numbers[float32](x[in.Name])))
		}
	}
	return list
}

// submit runs a call on tensors.
func submit(t *testing.T, dev *vk.Device, c call.Call, on map[string]vk.Tensor) {
	require.NoError(t, dev.Run(t.Context(), "call", c.Host().Bind(on, nil, c.Pass())))
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// TestDrawn compares drawn calls with float64: decoding on each path, appending, and both at once.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t)
	s := call.Space{Thorough: vktest.Thorough(d)}
	require.NoError(t, call.TestDrawn(t, d, "append", 8, s, nil))
	require.NoError(t, call.TestDrawn(t, d, "step", 2, s, nil))
	for _, impl := range []attention.Impl{attention.CoopMat, attention.Scalar} {
		s.Impls = []string{impl.String()}
		require.NoError(t, call.TestDrawn(t, d, "decode", 4, s, nil))
	}
}

// TestDecodeInfinite has an infinite value: its column of O is infinite or NaN in the rows that see
// the value and may be NaN in the rows that share its key, where one more column may be NaN; all
// other elements keep their bits.
func TestDecodeInfinite(t *testing.T) {
	dev := vktest.Open(t)
	for _, impl := range []attention.Impl{attention.CoopMat, attention.Scalar} {
		for _, format := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
			for _, dim := range []int{64, 96, 128, 256} {
				c := call.Decode{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
					Batch: 2, NumHeads: 8, NumKVHeads: 2, SeqQ: 2, SeqKV: 256, HeadDim: dim, DType: format, Causal: true,
				}}, Lens: []int{200, 90}, Data: call.Data{Magnitude: 2}}
				t.Run(fmt.Sprintf("%v/%v/%v", impl, format, dim), func(t *testing.T) {
					plan, err := attention.ChooseDecode(dev.Caps(), c.DecodeProblem, attention.Options{Impl: impl})
					switch matrix := impl == attention.CoopMat; {
					case matrix && errors.Is(err, vk.ErrUnsupported):
						t.Skip(err) // no matrices of bfloat16
					case matrix && dim > 64 && !vktest.Thorough(dev):
						t.Skip("lavapipe compiles it for long")
					}
					require.NoError(t, err)
					c.Config = &plan.Decode
					x := call.Inputs(&c)
					run := func() []float32 {
						on := uploaded(t, dev, &c, x)
						submit(t, dev, &c, on)
						return elements(t, on["o"])
					}
					finite := run()
					for _, at := range []struct{ key, column, from int }{{7, 3, 0}, {199, dim - 1, 1}} { // from: the first query that sees the key
						element := &x["v"][at.key*dim+at.column]
						old := *element
						*element = math.Inf(1)
						o := run()
						*element = old
						checkInfinite(t, &c, at.column, at.from, finite, o)
					}
				})
			}
		}
	}
}

// checkInfinite compares O with the O of the same call without an infinite value in a column of the
// first key head.
func checkInfinite(t *testing.T, c *call.Decode, column, from int, finite, o []float32) {
	isNaN := func(x float32) bool { return math.IsNaN(float64(x)) }
	for row := range len(o) / c.HeadDim {
		shares := row/c.SeqQ < c.NumHeads/c.NumKVHeads
		sees := shares && row%c.SeqQ >= from
		others := 0
		for e := range c.HeadDim {
			x, want := o[row*c.HeadDim+e], finite[row*c.HeadDim+e]
			switch {
			case sees && e == column:
				require.True(t, isNaN(x) || math.IsInf(float64(x), 1), "row %d, the column of the infinite value: %v", row, x)
			case math.Float32bits(x) == math.Float32bits(want):
			default:
				require.True(t, shares && isNaN(x), "row %d, column %d = %v, without the infinite value %v", row, e, x, want)
				if e != column {
					others++
				}
			}
		}
		require.LessOrEqual(t, others, 1, "row %d: columns that are NaN beside the column of the infinite value", row)
	}
}

// TestDecodeBad has lengths and tables that lead out of the cache: Decode writes nothing outside of its
// outputs, what is right with a sequence stays so, and the status says the rest.
func TestDecodeBad(t *testing.T) {
	d := vktest.Open(t)
	for _, row := range []struct {
		change func(c *call.Decode)
		table  string
		want   string
	}{
		{func(c *call.Decode) { c.PageSize, c.Pages = 8, 32 }, "block_table", "attention: decode: a sequence has keys in a page that is none of the cache's 32"},
		{func(c *call.Decode) { c.CacheRows = 4 }, "cache_batch_idx", "attention: decode: cache_batch_idx has a row that is none of the cache's 4"},
	} {
		for _, impl := range []attention.Impl{attention.Auto, attention.Scalar} {
			c := call.Decode{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
				Batch: 4, NumHeads: 2, NumKVHeads: 1, SeqQ: 1, SeqKV: 64, HeadDim: 64, DType: dtype.Float16, Causal: true,
			}}, Lens: []int{5, 6, 7, 8}, Impl: impl}
			row.change(&c)
			x := call.Inputs(&c)
			k, record, err := call.Case(d.Caps(), &c, kit.Forward, x)
			require.NoError(t, err)
			right := uploaded(t, d, &c, x)
			submit(t, d, &c, right)
			copy(x["seq_lens"], []float64{5, 1000, -3, 8})
			x[row.table][3*len(x[row.table])/4] = math.MaxInt32 // of the last sequence
			wrong := uploaded(t, d, &c, x)
			submit(t, d, &c, wrong)
			require.True(t, sameBits(elements(t, right["o"])[:2*64], elements(t, wrong["o"])[:2*64]), "a sequence that is right")
			err = attention.DecodeStatus(t.Context(), wrong["state"], c.DecodeProblem)
			require.ErrorContains(t, err, "attention: decode: a sequence is longer than its cache of 64 keys, or its length is negative")
			require.ErrorContains(t, err, row.want)
			for i := range k.Tensors {
				y := &k.Tensors[i]
				if y.Scratch, y.Want, y.Part = y.Want != nil, nil, nil; !y.Scratch {
					y.Values = x[y.Name]
				}
			}
			_, err = k.Check(d, record)
			require.NoError(t, err)
		}
	}
}
