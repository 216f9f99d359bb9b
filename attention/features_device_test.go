package attention_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestFeatureConfigs runs features in pairs and all together on tiles that the
// tuning table does not take on this device; on matrices, where a kernel takes
// seconds to compile, only what changes with the loops over the keys and with the
// stages of Q and O.
func TestFeatureConfigs(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	rows, _ := heavy(d)
	pairs := suite(d).Where(func(c *attntest.Case) bool { return combined(d, c) })
	half := suite(d).Where(func(c *attntest.Case) bool { return c.Problem.DType == dtype.Float16 })
	windows := half.Where(func(c *attntest.Case) bool {
		return combined(d, c) && c.Problem.Window.On && (strings.HasPrefix(c.Name, "all/") || vktest.Thorough(d))
	})
	causal := half.Where(func(c *attntest.Case) bool {
		pair := strings.HasPrefix(c.Name, "pair/") && (c.Problem.Varlen.On || !software(d))
		return pair && c.Problem.Causal && !c.Problem.Window.On
	})
	dims := half.Where(func(c *attntest.Case) bool {
		return strings.HasPrefix(c.Name, "value-dim/8to72") || strings.HasPrefix(c.Name, "value-dim/72to8")
	})
	for _, x := range []struct {
		cases  *attntest.Suite
		config attention.Config
	}{
		{causal, attention.Config{Impl: attention.CoopMat2, Subgroups: 2, RowTiles: 2, BlockN: 16, Prefetch: true, PeelMask: true, KeysFirst: true}},
		{windows, attention.Config{Impl: attention.CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, PeelMask: true, Detour: true}},
		{dims, attention.Config{Impl: attention.CoopMat2, Subgroups: 4, RowTiles: rows, BlockN: 16, Prefetch: true}},
		{pairs, attention.Config{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 8, ValueRows: 4}},
		{pairs, attention.Config{Impl: attention.Unfused, Threads: 64, ThreadsX: 16, BlockM: 16, BlockN: 16, Depth: 16}},
	} {
		t.Run(x.config.String(), func(t *testing.T) {
			vktest.Require(t, x.config.Impl.String(), pathError(d.Caps(), x.config.Impl))
			f := onDevice{d, attention.Options{Config: &x.config}}
			attntest.TestForward(t, standIns(d, x.cases, f.Supports), f)
		})
	}
}

// combined reports whether a case has features in pairs or more, on software several.
func combined(d *vk.Device, c *attntest.Case) bool {
	pair := strings.HasPrefix(c.Name, "pair/") || strings.HasPrefix(c.Name, "all/")
	return pair && (len(c.Problem.Features()) >= attntest.Several || !software(d))
}

// packedProblem returns one of few packed sequences with all features, a window that hides nothing
// among them. The suite has its kernels, so that lavapipe compiles none for tests of bad lengths.
func packedProblem(d *vk.Device) (p attention.Problem) {
	suite(d).Where(func(c *attntest.Case) bool {
		if c.Name == "all/packed/float16" {
			p = c.Problem
		}
		return false
	})
	p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV = 3, 2, 1, 20, 15
	p.Varlen = attention.Varlen{On: true, TotalQ: 40, TotalKV: 30}
	p.Window.Left = 1 << 30
	return p
}

// badInputs returns tensors for packedProblem.
func badInputs(p attention.Problem) attntest.Inputs {
	tensor := guarded
	return attntest.Inputs{
		Q: tensor("q", p.DType, 1, p.QShape()...), K: tensor("k", p.DType, 1, p.KShape()...), V: tensor("v", p.DType, 1, p.VShape()...),
		Bias: tensor("bias", p.Bias.DType, 0, p.BiasShape()...), ALiBiSlopes: tensor("alibi_slopes", dtype.Float32, 0, p.SlopesShape()...),
		KeyMask: tensor("key_mask", dtype.Bool, 1, p.KeyMaskShape()...), Sinks: tensor("sinks", dtype.Float32, 0, p.SinksShape()...),
		CuSeqlensQ: tensor("cu_seqlens_q", dtype.Int32, 0, 4), CuSeqlensKV: tensor("cu_seqlens_kv", dtype.Int32, 0, 4),
	}
}

// TestBadLengths: cumulative lengths that break every rule neither crash nor lead a
// kernel to memory outside of O and LSE.
func TestBadLengths(t *testing.T) {
	d := vktest.Open(t)
	p, tensor := packedProblem(d), guarded
	in := badInputs(p)
	for _, impl := range attention.Impls() {
		for i, cu := range badLengths {
			t.Run(fmt.Sprintf("%v/%d", impl, i), func(t *testing.T) {
				if err := attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: impl}); err != nil {
					t.Skip(err)
				}
				copy(in.CuSeqlensQ.Data[wide:], cu[0][:])
				copy(in.CuSeqlensKV.Data[wide:], cu[1][:])
				o, lse := tensor("O", p.DType, canary, p.OShape()...), tensor("LSE", dtype.Float32, canary, p.LSEShape()...)
				require.NoError(t, guard.Watch(in.List(), []*guard.View{o, lse}, func() error {
					return onDevice{d, attention.Options{Impl: impl}}.Forward(o, lse, in, p)
				}))
			})
		}
	}
}

// TestFeatureKernels: a call without features runs kernels that know of none, a call
// with one a kernel that does; recording it again compiles nothing and allocates
// little.
func TestFeatureKernels(t *testing.T) {
	for _, impl := range attention.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			d := vktest.Open(t)
			p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 8, SeqKV: 8, HeadDim: 8, DType: dtype.Float16, Causal: true}
			if err := attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: impl}); err != nil {
				t.Skip(err)
			}
			o, lse, q, k, v := newTensors(t, d, p)
			c, err := d.NewCmd("features")
			require.NoError(t, err)
			defer c.Close()
			record := func() {
				c.Reset()
				require.NoError(t, attention.Forward(c, attention.Tensors{O: o, LSE: lse, Q: q, K: k, V: v}, p, attention.Options{Impl: impl}))
			}
			features := func() (n int) {
				for _, info := range d.CachedKernels() {
					if strings.Contains(info.Name, "_features") {
						n++
					}
				}
				return n
			}
			record()
			require.Zero(t, features())
			plain := len(d.CachedKernels())
			p.Window = attention.Window{On: true, Left: 3}
			record()
			require.NotZero(t, features())
			all := len(d.CachedKernels())
			require.Equal(t, all-plain, features())
			require.LessOrEqual(t, testing.AllocsPerRun(10, record), 60.0)
			require.Len(t, d.CachedKernels(), all)
		})
	}
}
