package attention_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestForwardOnDecode runs the suite's problems of few queries by Forward on the kernels of Decode.
func TestForwardOnDecode(t *testing.T) {
	d := vktest.Open(t)
	for _, config := range []attention.DecodeConfig{
		{Impl: attention.Scalar, Rows: 4, Subgroups: 4, Groups: 3},
		{Impl: attention.Scalar, Rows: 1, Subgroups: 1, Groups: 40},
		{Impl: attention.CoopMat, Rows: 16, Subgroups: 4, Groups: 7},
	} {
		t.Run(config.String(), func(t *testing.T) {
			f := onDevice{d, attention.Options{DecodeConfig: &config}}
			cases := suite(d).Where(func(c *attntest.Case) bool {
				return c.Problem.SeqQ <= attention.MaxDecodeQueries && attention.Supports(d.Caps(), c.Problem, kit.Forward, f.opt) == nil
			})
			if config.Impl == attention.CoopMat {
				plain := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 64, DType: dtype.Float16}
				if err := attention.Supports(d.Caps(), plain, kit.Forward, f.opt); !chips.Quads(d.Caps()) {
					require.ErrorIs(t, err, vk.ErrUnsupported)
					t.Skip(err)
				}
			}
			require.NotEmpty(t, cases.Cases)
			attntest.TestForward(t, standIns(d, cases, f.Supports), f)
		})
	}
}

// TestForwardOnDecodeTwice records calls that share memory for their counters, in one Cmd that runs
// several times, and wants the same bits from each.
func TestForwardOnDecodeTwice(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 500, HeadDim: 16, DType: dtype.Float16, Causal: true}
	opt := attention.Options{DecodeConfig: &attention.DecodeConfig{Impl: attention.Scalar, Rows: 2, Subgroups: 2, Groups: 9}}
	o, lse, q, k, v := newTensors(t, d, p)
	r := rand.New(rand.NewPCG(1, 2))
	for _, x := range []struct {
		n  int
		up func(context.Context, []float32) error
	}{{q.NumElements(), q.Upload}, {k.NumElements(), k.Upload}, {v.NumElements(), v.Upload}} {
		list := make([]float32, x.n)
		for i := range list {
			list[i] = float32(r.NormFloat64())
		}
		require.NoError(t, x.up(ctx, list))
	}
	c, err := d.NewCmd("twice")
	require.NoError(t, err)
	defer c.Close()
	first := make([]byte, 2*o.NumElements())
	for recording := range 2 {
		for range 3 {
			require.NoError(t, attention.Forward(c, attention.Tensors{Q: q, K: k, V: v, O: o, LSE: lse}, p, opt))
		}
		for run := range 3 {
			require.NoError(t, o.Zero(ctx))
			require.NoError(t, c.Submit(ctx))
			got := make([]byte, len(first))
			require.NoError(t, o.DownloadRaw(ctx, got))
			if recording+run == 0 {
				copy(first, got)
			}
			require.Equal(t, first, got)
		}
		c.Reset()
	}
}
