package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// A stepper appends a token after the other to a cache, and decodes it.
type stepper struct {
	cache           *attention.KVCache
	p               attention.AppendProblem
	q, k, v, o, lse vk.Tensor
	cos, sin        vk.Tensor
	replay          *vk.Cmd // recorded once
}

func newStepper(t *testing.T, dev *vk.Device, config attention.KVCacheConfig, rope attention.RoPE) *stepper {
	s := &stepper{cache: newCache(t, dev, config)}
	s.p = attention.AppendProblem{DecodeProblem: s.cache.Problem(1, 1), RoPE: rope}
	tensor := func(f dtype.DType, shape ...int) vk.Tensor { return vktest.Tensor(t, dev, f, shape...) }
	s.q, s.k, s.v = tensor(s.p.DType, s.p.QShape()...), tensor(s.p.DType, s.p.NewKShape()...), tensor(s.p.DType, s.p.NewVShape()...)
	s.o, s.lse = tensor(s.p.DType, s.p.OShape()...), tensor(dtype.Float32, s.p.LSEShape()...)
	cos, sin := attention.Frequencies{Dims: rope.Dims}.Table(s.p.SeqKV)
	s.cos, s.sin = vktest.Values(t, dev, dtype.Float32, cos, s.p.SeqKV, rope.Dims/2), vktest.Values(t, dev, dtype.Float32, sin, s.p.SeqKV, rope.Dims/2)
	return s
}

// record returns a step.
func (s *stepper) record(t *testing.T, dev *vk.Device) *vk.Cmd {
	c, err := dev.NewCmd("step")
	require.NoError(t, err)
	require.NoError(t, s.cache.Append(c, 0, attention.AppendTensors{NewK: s.k, NewV: s.v, Q: s.q, Cos: s.cos, Sin: s.sin}, s.p))
	require.NoError(t, s.cache.Decode(c, 0, attention.DecodeTensors{Q: s.q, O: s.o, LSE: s.lse}, s.p.DecodeProblem, attention.Options{}))
	require.NoError(t, s.cache.Advance(c, 1))
	return c
}

// step appends and decodes token number n of all sequences, fresh or replayed, and returns O and
// LSE and the queries as they were rotated.
func (s *stepper) step(t *testing.T, dev *vk.Device, n int, fresh bool) (o, lse, q []float32) {
	r := rand.New(rand.NewPCG(uint64(n), 7))
	for _, x := range []vk.Tensor{s.q, s.k, s.v} {
		data := make([]float32, x.NumElements())
		for i := range data {
			data[i] = float32(r.NormFloat64())
		}
		require.NoError(t, x.Upload(t.Context(), data))
	}
	c := s.replay
	if fresh || c == nil {
		c = s.record(t, dev)
		if fresh {
			defer c.Close()
		} else {
			s.replay = c
			t.Cleanup(c.Close)
		}
	}
	require.NoError(t, c.Submit(t.Context()))
	return elements(t, s.o), elements(t, s.lse), elements(t, s.q)
}

// TestReplay decodes 1,000 tokens into an empty cache: by one recorded step, by fresh recordings
// and with pages in random order, all the same bits, and as Forward of the whole. A software driver
// decodes 120, on eight pages.
func TestReplay(t *testing.T) {
	dev := vktest.Open(t)
	const page = 16
	for _, format := range []struct {
		dtype.DType
		cache attention.CacheFormat
	}{{dtype.Float16, 0}, {dtype.BFloat16, 0}, {dtype.Float32, 0}, {dtype.Float16, attention.CacheE4M3}, {dtype.BFloat16, attention.CacheE4M3}, {dtype.Float16, attention.CacheQ8_0}} {
		steps := 1000
		if !vktest.Thorough(dev) {
			steps = 120
		}
		t.Run(fmt.Sprintf("%v/%v", format.DType, format.cache), func(t *testing.T) {
			config := attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
				Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, SeqKV: 1008, HeadDim: 64, ValueDim: 32, DType: format.DType, Causal: true,
			}, Cache: format.cache}}
			rope := attention.RoPE{Dims: 64}
			run := func(config attention.KVCacheConfig, fresh bool) (s *stepper, outputs, lses, queries [][]float32) {
				s = newStepper(t, dev, config, rope)
				require.NoError(t, s.cache.Reserve(t.Context(), steps))
				if config.PageSize > 0 {
					var table []int32
					for _, i := range rand.New(rand.NewPCG(3, 3)).Perm(config.Pages)[:config.Batch*config.SeqKV/page] {
						table = append(table, int32(i))
					}
					require.NoError(t, s.cache.BlockTable.UploadInts(t.Context(), table))
				}
				for n := range steps {
					o, lse, q := s.step(t, dev, n, fresh)
					outputs, lses, queries = append(outputs, o), append(lses, lse), append(queries, q)
				}
				require.NoError(t, s.cache.Status(t.Context()))
				lens, err := s.cache.Len(t.Context())
				require.NoError(t, err)
				require.Equal(t, []int{steps, steps}, lens)
				return s, outputs, lses, queries
			}
			config.Layout = attention.HND
			s, o, lse, q := run(config, false)
			config.Layout = attention.NHD
			_, again, lseAgain, _ := run(config, true)
			config.PageSize, config.Pages = page, 150
			_, paged, lsePaged, _ := run(config, false)
			for n := range steps {
				require.True(t, sameBits(o[n], again[n]) && sameBits(lse[n], lseAgain[n]), "step %d: another layout, recorded again", n)
				require.True(t, sameBits(o[n], paged[n]) && sameBits(lse[n], lsePaged[n]), "step %d: pages", n)
			}
			compareForward(t, dev, s, o, lse, q)
		})
	}
}

// compareForward compares the results of the steps with Forward of all queries and keys.
func compareForward(t *testing.T, dev *vk.Device, s *stepper, o, lse, q [][]float32) {
	p := s.p.Problem
	n := len(o)
	p.SeqQ, p.SeqKV = n, n
	var in [3][]float32
	for b := range p.Batch {
		for h := range p.NumHeads {
			for i := range n {
				in[0] = append(in[0], q[i][(b*p.NumHeads+h)*p.HeadDim:][:p.HeadDim]...)
			}
		}
		k, v := contents(t, s.cache, 0, b, n)
		in[1], in[2] = append(in[1], k...), append(in[2], v...)
	}
	wantO, wantLSE := make([]float32, call.Product(p.OShape())), make([]float32, call.Product(p.LSEShape()))
	require.NoError(t, attention.ForwardHost(t.Context(), dev, attention.HostTensors{Q: in[0], K: in[1], V: in[2], O: wantO, LSE: wantLSE}, p, attention.Options{Impl: attention.Scalar}))
	ulp := map[dtype.DType]float64{dtype.Float16: 0x1p-10, dtype.BFloat16: 0x1p-7, dtype.Float32: 0}[p.DType]
	// On matrices weights are rounded to the format, each by half an ulp.
	weights := 0.0
	plan, err := attention.ChooseDecode(dev.Caps(), s.p.DecodeProblem, attention.Options{})
	require.NoError(t, err)
	if plan.Decode.Impl == attention.CoopMat {
		for _, v := range in[2] {
			weights = max(weights, ulp/2*math.Abs(float64(v)))
		}
	}
	dv := p.ValueHeadDim()
	for b := range p.Batch {
		for h := range p.NumHeads {
			for i := range n {
				row := (b*p.NumHeads+h)*n + i
				for e := range dv {
					got, want := float64(o[i][(b*p.NumHeads+h)*dv+e]), float64(wantO[row*dv+e])
					if !(math.Abs(got-want) <= ulp*math.Abs(want)+weights+64*0x1p-24) {
						t.Fatalf("position %d: o[%d,%d,%d] = %v, forward's is %v", i, b, h, e, got, want)
					}
				}
				require.InDelta(t, wantLSE[row], lse[i][b*p.NumHeads+h], 1e-5, "position %d: lse", i)
			}
		}
	}
}

// TestStatus has caches that become full, and pages that nobody reserved.
func TestStatus(t *testing.T) {
	dev := vktest.Open(t)
	for _, pageSize := range []int{0, 8} {
		config := attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
			Batch: 2, NumHeads: 2, NumKVHeads: 1, SeqQ: 1, SeqKV: 24, HeadDim: 32, DType: dtype.Float32, Causal: true,
		}, PageSize: pageSize}}
		if pageSize > 0 {
			config.Pages = 6
		}
		s := newStepper(t, dev, config, attention.RoPE{Dims: 32})
		ctx := t.Context()
		if pageSize > 0 {
			require.NoError(t, s.cache.Reserve(ctx, 1))
			s.replay = s.record(t, dev)
			t.Cleanup(s.replay.Close)
			require.NoError(t, s.cache.Reset(ctx)) // takes the pages
			s.step(t, dev, 0, false)
			require.EqualError(t, s.cache.Status(ctx), "attention: decode: a sequence has keys in a page that is none of the cache's 6")
			_, err := s.cache.Len(ctx)
			require.NoError(t, err)
			require.ErrorContains(t, s.cache.Reserve(ctx, 1), "attention: cache: sequence 0 has 1 keys, which its cache of 0 cannot hold: Truncate or Reset")
			require.NoError(t, s.cache.Reset(ctx))
		}
		require.NoError(t, s.cache.Reserve(ctx, 24))
		for n := range 24 {
			s.step(t, dev, n, false)
		}
		require.NoError(t, s.cache.Status(ctx))
		before, _ := contents(t, s.cache, 0, 1, 24)
		s.step(t, dev, 100, false)
		s.step(t, dev, 101, false)
		require.EqualError(t, s.cache.Status(ctx), "attention: decode: a sequence is longer than its cache of 24 keys, or its length is negative")
		require.NoError(t, s.cache.Status(ctx))
		after, _ := contents(t, s.cache, 0, 1, 24)
		require.Equal(t, before, after)
		require.ErrorContains(t, s.cache.Reserve(ctx, 1), "attention: cache: sequence 0 has 26 keys, which its cache of 24 cannot hold: Truncate or Reset")
		require.NoError(t, s.cache.Truncate(ctx, 0, 24))
		require.NoError(t, s.cache.Truncate(ctx, 1, 23))
		require.EqualError(t, s.cache.Reserve(ctx, 1), "attention: cache: sequence 0 has 24 keys, 1 more are beyond the capacity seq_kv=24")
		require.NoError(t, s.cache.Truncate(ctx, 0, 20))
		require.NoError(t, s.cache.Reserve(ctx, 1))
		o, _, _ := s.step(t, dev, 23, false)
		require.NoError(t, s.cache.Status(ctx))
		require.False(t, slices.ContainsFunc(o, func(x float32) bool { return x != x }))
	}
}
