package skinny_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// Tiles of a few small matrices: whose rows leave in several strips, which are added to one another; with
// subgroups side by side and below each other; with op(B) packed, of one subgroup, and with eight
// neighbours of a row in an invocation. $1 and $4 are sides of the device's matrices.
const (
	strips = "coopmat s1x1 t1x4 k$1 g2"
	wide   = "coopmat s1x2 t2x1 k$1 g2"
	stages = "coopmat s1x2 t1x3 k$1 g2"
	high   = "coopmat s3x1 t2x1 k$1 g2"
	packed = "coopmat s2x1 t1x2 k$4 packb g2"
	alone  = "coopmat s1x1 t1x2 k$4 packb g2" // lavapipe's subgroupBarrier waits for all (lib/rows_coopmat.glsl)
	runs   = "coopmat s1x2 t1x8 k$1 packb g2"
)

// heads returns a call of sizes: heads, tokens, hidden units, in and out.
func heads(sizes [5]int, config string, change ...func(m *call.MLP)) *call.MLP {
	m := &call.MLP{
		Problem: mlp.Problem{Heads: sizes[0], Tokens: sizes[1], Hidden: sizes[2], In: sizes[3], Out: sizes[4]},
		Skinny:  true, Impl: "coopmat", Config: config,
	}
	for _, f := range change {
		f(m)
	}
	return m
}

// each calls f in every format that the device has matrices of, with a configuration for it.
func each(t *testing.T, d *vk.Device, f func(format dtype.DType, config func(string) string)) {
	for format, shape := range chipstest.MatrixFormats(t, d) {
		f(format, strings.NewReplacer("$1", fmt.Sprint(shape.N), "$4", fmt.Sprint(4*shape.N)).Replace)
	}
}

// TestDrawn checks drawn calls of the kernels with the table's tiles, and with others.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t)
	each(t, d, func(format dtype.DType, config func(string) string) {
		s := call.Space{Impls: []string{"coopmat"}, DTypes: []dtype.DType{format}, Thorough: vktest.Thorough(d)}
		for i, words := range []string{"", strips, wide, stages, high, packed, alone, runs} {
			for _, backward := range []bool{false, true} {
				if backward && strings.Contains(words, "packb") {
					continue // op(B) cannot be packed
				}
				require.NoError(t, call.TestDrawn(t, d, "grouped", 1, s, func(c call.Call) {
					m := c.(*call.MLP)
					m.Skinny, m.Config, m.Out, m.Backward = true, config(words), min(m.Out, 8), backward
				}), words)
			}
			if i < 3 {
				require.NoError(t, call.TestDrawn(t, d, "mixture", 2, s, func(c call.Call) {
					m := c.(*call.Mixture)
					m.Backward, m.Direct, m.Config = false, true, config(words)
				}))
			}
		}
	})
}

// TestForwardParts wants float32 results of hidden units that are too large for parts of 16 bits, where
// op(B) is packed, beside others.
func TestForwardParts(t *testing.T) {
	d := vktest.Open(t)
	each(t, d, func(format dtype.DType, config func(string) string) {
		m := heads([5]int{2, 21, 45, 19, 3}, config(alone), func(m *call.MLP) { m.Float32, m.DType, m.Layout = true, format, "o" })
		x, part, by := call.Inputs(m), 0x1p-20, 0x1p13 // of a hidden unit, its error in two parts
		if format == dtype.BFloat16 {
			part, by = 0x1p-14, 0x1p63
		}
		c, record, err := call.Case(d.Caps(), m, kit.Forward, x)
		require.NoError(t, err)
		for i := range x["x"] {
			if row := i / m.In; row == 3 || row == m.Tokens-1 {
				x["x"][i] *= by
			}
		}
		y := &c.Tensors[len(c.Tensors)-1]
		require.Equal(t, "y", y.Name)
		for i := range y.Want {
			token, head, out := i/(m.Heads*m.Out), i/m.Out%m.Heads, i%m.Out
			y.Want[i] = 0
			bound := 0.0
			for j := range m.Hidden {
				pre, terms := 0.0, 0.0
				for k := range m.In {
					v := x["x"][token*m.In+k] * x["w1"][(head*m.In+k)*m.Hidden+j]
					pre, terms = pre+v, terms+math.Abs(v)
				}
				w := x["w2"][(head*m.Hidden+j)*m.Out+out]
				y.Want[i] += ref.SiLU(pre) * w
				bound += math.Abs(w) * (1.1*float64(m.In)*0x1p-23*terms + (part+float64(m.Hidden)*0x1p-23)*math.Abs(ref.SiLU(pre)))
			}
			y.Bounds = append(y.Bounds, bound+1e-5)
		}
		c.Test(t, d, record)
	})
}

// TestRefused wants errors that name the problem that the kernels do not handle, or the tensor that
// does not fit.
func TestRefused(t *testing.T) {
	d := vktest.Open(t)
	p := engine.Problem{Batch: 2, M: 2, N: 3, K: 4, Activation: engine.SiLU, DType: dtype.Float16, Out: dtype.Float32}
	kept := p
	kept.TransB, kept.Activation = true, engine.TimesDSiLU
	o := engine.Options{Impl: engine.CoopMat}
	if _, err := skinny.ChooseBackward(d.Caps(), p, 4, o); err != nil {
		vktest.Require(t, "coopmat", err)
	}
	const half = dtype.Float16
	tensor := func(format dtype.DType, shape ...int) vk.Tensor { return vktest.Tensor(t, d, format, shape...) }
	type tensors struct {
		skinny.Tensors
		logits, y, states vk.Tensor
	}
	good := tensors{skinny.Tensors{
		A: tensor(half, 2, 2, 4), B: tensor(half, 2, 4, 3), W: tensor(half, 2, 3, 4), DY: tensor(half, 2, 2, 4), DW: tensor(dtype.Float32, 2, 3, 4),
		Pre: tensor(half, 2, 2, 3), DPre: tensor(half, 2, 2, 8),
	}, tensor(half, 2, 3, 3), tensor(dtype.Float32, 2), tensor(dtype.Float32, 2, 2, gmm.StateSize)}
	good.DPre.Shape = []int{2, 2, 3}
	c, err := d.NewCmd("errors")
	require.NoError(t, err)
	defer c.Close()
	calls := map[string]func(x tensors, p engine.Problem) error{
		"forward": func(_ tensors, p engine.Problem) error {
			_, err := skinny.ChooseForward(d.Caps(), p, p.K, o)
			return err
		},
		"backward": func(x tensors, p engine.Problem) error {
			_, err := skinny.Backward(c, x.Tensors, p.K, p, o)
			return err
		},
		"kept": func(x tensors, p engine.Problem) error {
			_, err := skinny.BackwardKept(c, x.Tensors, p, engine.Options{})
			return err
		},
		"mixture": func(x tensors, p engine.Problem) error {
			return skinny.Mixture(c, skinny.MixtureTensors{A: x.A, B: x.B, W: x.logits, Y: x.y, States: x.states}, p, o)
		},
	}
	for _, x := range []struct {
		call, want string
		change     func(x *tensors, p *engine.Problem)
	}{
		{"forward", "w has 9 columns, not from 1 to 8", func(_ *tensors, p *engine.Problem) { p.K = 9 }},
		{"forward", "unsupported", func(_ *tensors, p *engine.Problem) { p.DType = dtype.Float32 }},
		{"forward", "has another epilogue than silu", func(_ *tensors, p *engine.Problem) { p.Activation = engine.Identity }},
		{"backward", "w has 9 columns, not from 1 to 8", func(_ *tensors, p *engine.Problem) { p.K = 9 }},
		{"backward", "gemm: dpre has offset 0 and strides [6 3 1]: not multiples of 8 elements", func(x *tensors, _ *engine.Problem) { x.DPre = x.Pre }},
		{"backward", "gemm: dw is float16, want float32", func(x *tensors, _ *engine.Problem) { x.DW = x.W }},
		{"kept", "nt float16 to float32 silu is not dy * wᵀ, times silu'", func(_ *tensors, p *engine.Problem) { p.Activation = engine.SiLU }},
		{"kept", "w has 9 columns, not from 1 to 8", func(_ *tensors, p *engine.Problem) { p.K = 9 }},
		{"kept", "gradients of float32 by pre and w at a time: no kernel", func(_ *tensors, p *engine.Problem) { p.DType = dtype.Float32 }},
		{"kept", "is more than the device's", func(_ *tensors, p *engine.Problem) { p.Batch = 1 << 29 }},
		{"kept", "gemm: dpre overlaps pre", func(x *tensors, _ *engine.Problem) { x.DPre = x.Pre }},
		{"mixture", "has another epilogue than silu", func(_ *tensors, p *engine.Problem) { p.Activation = engine.Identity }},
		{"mixture", "gemm: states has shape [2], want [groups 2 8] with groups from 1 to 2", func(x *tensors, _ *engine.Problem) { x.states = x.y }},
		{"mixture", "gemm: w has shape [2 2 4]", func(x *tensors, _ *engine.Problem) { x.logits = x.A }},
		{"mixture", "strides [16 8 1]: not multiples of 4 elements", func(x *tensors, _ *engine.Problem) { x.states.Shape, x.states.Offset = []int{1, 2, 8}, 2 }},
		{"mixture", "gemm: out=float16 of Mixture is not float32", func(_ *tensors, p *engine.Problem) { p.Out = half }},
	} {
		of := p
		if x.call == "kept" {
			of = kept
		}
		c.Reset()
		require.NoError(t, calls[x.call](good, of))
		bad := good
		x.change(&bad, &of)
		require.ErrorContains(t, calls[x.call](bad, of), x.want, x.call)
	}
}
