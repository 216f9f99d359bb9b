package decoder

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Forward computes a layer, in one dispatch; the package documentation has the formulas.
//
// SeqLens stays as it is. If it is p.Keys or more, or negative, Y is NaN and K and V stay as they are. Rows of QKV, Out, GateUp,
// Down, K and V begin at multiples of 8 elements.
//
// Forward records into c and returns; Y, K and V are valid once c has completed, and share memory with no other tensor. Forward
// returns an error that wraps vk.ErrUnsupported if the device cannot compute p, and one that names the tensor that does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) error {
	return ForwardLayers(c, []Tensors{t}, p, o)
}

// ForwardLayers computes layers one behind the other: X is of the first, Y of the last, and the others have neither. With
// Config.Beside the workgroups of a layer start while those of the layer before run. Options.Workspace has len(list) times the
// bytes of Workspace. The rest is as in Forward.
func ForwardLayers(c *vk.Cmd, list []Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	caps := c.Device().Caps()
	plan, err := Choose(caps, p, kit.Forward, o)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("decoder: layers=%d is not positive", len(list))
	}
	bytes := int64(len(list)) * plan.bytes
	memory, err := open(c, list, &p, o.Workspace, bytes)
	if err != nil {
		return err
	}
	options := vk.KernelOptions{SubgroupSize: caps.SubgroupSize, FullSubgroups: true}
	k := chips.Kernel[params](c, "decoder", p.DType.Short(), newSpec(caps, &p, plan.Config), options)
	c.Fill(memory, 0, bytes, empty)
	words := vk.View(memory, dtype.Int32, int(bytes/4)).Narrow()
	x, y := list[0].X.Narrow(), list[len(list)-1].Y.Narrow()
	dispatch := func() {
		for i, t := range list {
			if !p.Bias {
				t.Bias = t.NormA // which the kernel does not touch as such
			}
			vk.Narrow(&t.Cos, &t.Sin, &t.SeqLens, &t.NormA, &t.QKV, &t.Bias, &t.Out, &t.NormB, &t.GateUp, &t.Down, &t.K, &t.V)
			t.X, t.Y = x, y
			args := newParams(&t, &p, i*plan.words(&p), (i-1)*plan.words(&p))
			if i == 0 {
				args.Before = none
			}
			if i == len(list)-1 {
				args.Last = 1
			}
			c.Note(func() vk.Note { return vk.Note{Text: p.String(), FLOPs: p.FLOPs(), Bytes: p.Bytes()} })
			k.Dispatch(c, vk.Groups{X: uint32(plan.Groups)}, args, x, t.Cos, t.Sin, t.SeqLens, t.NormA, t.QKV, t.Bias, t.Out, t.NormB, t.GateUp, t.Down, t.K, t.V, words, y)
		}
	}
	if plan.Beside && len(list) > 1 {
		c.Beside(dispatch)
	} else {
		dispatch()
	}
	return c.Err()
}

// open returns the workspace, and an error that names the first tensor that does not fit p.
func open(c *vk.Cmd, list []Tensors, p *Problem, given *vk.Buffer, bytes int64) (*vk.Buffer, error) {
	row, angles, cache := []int{1, p.Width}, []int{p.Keys, p.HeadDim / 2}, []int{p.KVHeads, p.Keys, p.HeadDim}
	var inputs, outputs []argument.Argument
	type named struct {
		name string
		vk.Tensor
	}
	var placed []named
	for i := range list {
		t, of := &list[i], ""
		if len(list) > 1 {
			of = fmt.Sprintf(" of layer %d", i)
		}
		inputs = append(inputs,
			argument.New("x"+of, t.X, i == 0, p.DType, row),
			argument.New("cos"+of, t.Cos, true, dtype.Float32, angles),
			argument.New("sin"+of, t.Sin, true, dtype.Float32, angles),
			argument.New("seq_lens"+of, t.SeqLens, true, dtype.Int32, []int{1}),
			argument.New("norm_a"+of, t.NormA, true, dtype.Float32, []int{p.Width}),
			argument.New("qkv"+of, t.QKV, true, p.DType, []int{p.qkv(), p.Width}),
			argument.New("bias"+of, t.Bias, p.Bias, dtype.Float32, []int{p.qkv()}),
			argument.New("out"+of, t.Out, true, p.DType, []int{p.Width, p.attended()}),
			argument.New("norm_b"+of, t.NormB, true, dtype.Float32, []int{p.Width}),
			argument.New("gate_up"+of, t.GateUp, true, p.DType, []int{2 * p.Hidden, p.Width}),
			argument.New("down"+of, t.Down, true, p.DType, []int{p.Width, p.Hidden}))
		outputs = append(outputs,
			argument.New("k"+of, t.K, true, p.DType, cache),
			argument.New("v"+of, t.V, true, p.DType, cache),
			argument.New("y"+of, t.Y, i == len(list)-1, p.DType, row))
		placed = append(placed, named{"cos" + of, t.Cos}, named{"sin" + of, t.Sin}, named{"qkv" + of, t.QKV}, named{"out" + of, t.Out},
			named{"gate_up" + of, t.GateUp}, named{"down" + of, t.Down}, named{"k" + of, t.K}, named{"v" + of, t.V})
	}
	memory, err := argument.Open(c, "decoder", given, bytes, inputs, outputs)
	if err != nil {
		return nil, err
	}
	for _, x := range placed {
		switch angles := x.DType == dtype.Float32; {
		case angles && !x.Contiguous():
			return nil, fmt.Errorf("decoder: %s has strides %v: angles are not contiguous", x.name, x.Strides)
		case !angles && !x.Aligned(vec):
			return nil, fmt.Errorf("decoder: %s has offset %d and strides %v: rows do not begin at multiples of %d elements", x.name, x.Offset, x.Strides, vec)
		}
	}
	return memory, nil
}

const (
	empty   = 0xffffffff // EMPTY in decoder.comp
	none    = 0xffffffff // NONE
	limit   = 1 << 16    // reads of a word, about 50 ms on a GPU
	buffers = 15         // bindings
)

// weight is where a weight lies, in vectors.
type weight struct {
	Offset uint32 `glsl:"offset"`
	Stride uint32 `glsl:"stride"`
}

func weightOf(t vk.Tensor) weight { return weight{uint32(t.Offset / vec), uint32(t.Strides[0] / vec)} }

// cache is where the keys of a layer lie, in vectors.
type cache struct {
	Offset uint32 `glsl:"offset"`
	Head   uint32 `glsl:"head"`
	Key    uint32 `glsl:"key"`
}

func cacheOf(t vk.Tensor) cache {
	return cache{uint32(t.Offset / vec), uint32(t.Strides[0] / vec), uint32(t.Strides[1] / vec)}
}

// params is the push-constant block of decoder.comp.
type params struct {
	Keys    uint32  `glsl:"keys"`
	Eps     float32 `glsl:"eps"`
	Words   uint32  `glsl:"words"`
	Before  uint32  `glsl:"before"`
	Last    uint32  `glsl:"last"`
	X       uint32  `glsl:"x_offset"`
	Y       uint32  `glsl:"y_offset"`
	Cos     uint32  `glsl:"cos_offset"`
	Sin     uint32  `glsl:"sin_offset"`
	SeqLens uint32  `glsl:"seq_lens_offset"`
	NormA   uint32  `glsl:"norm_a_offset"`
	NormB   uint32  `glsl:"norm_b_offset"`
	Bias    uint32  `glsl:"bias_offset"`
	QKV     weight  `glsl:"qkv"`
	Out     weight  `glsl:"out_"`
	GateUp  weight  `glsl:"gate_up"`
	Down    weight  `glsl:"down"`
	K       cache   `glsl:"k"`
	V       cache   `glsl:"v"`
}

// newParams returns the parameters of a layer whose words begin somewhere, and those of the layer before.
func newParams(t *Tensors, p *Problem, words, before int) params {
	return params{
		Keys: uint32(p.Keys), Eps: float32(p.Eps), Words: uint32(words), Before: uint32(before),
		X: uint32(t.X.Offset), Y: uint32(t.Y.Offset), Cos: uint32(t.Cos.Offset), Sin: uint32(t.Sin.Offset), SeqLens: uint32(t.SeqLens.Offset),
		NormA: uint32(t.NormA.Offset), NormB: uint32(t.NormB.Offset), Bias: uint32(t.Bias.Offset),
		QKV: weightOf(t.QKV), Out: weightOf(t.Out), GateUp: weightOf(t.GateUp), Down: weightOf(t.Down), K: cacheOf(t.K), V: cacheOf(t.V),
	}
}

// spec is the specialization of decoder.comp.
type spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Subgroup      uint32 `glsl:"SUBGROUP"`
	Groups        uint32 `glsl:"GROUPS"`
	Width         uint32 `glsl:"WIDTH"`
	Hidden        uint32 `glsl:"HIDDEN"`
	Heads         uint32 `glsl:"HEADS"`
	KVHeads       uint32 `glsl:"KV_HEADS"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Splits        uint32 `glsl:"SPLITS"`
	Team          uint32 `glsl:"TEAM"`
	Loads         uint32 `glsl:"LOADS"`
	AtOnce        uint32 `glsl:"KEYS"`
	Ahead         uint32 `glsl:"AHEAD"`
	Copies        uint32 `glsl:"COPIES"`
	Bias          bool   `glsl:"BIAS"`
	Limit         uint32 `glsl:"LIMIT"`
}

func newSpec(caps *vk.Caps, p *Problem, c Config) spec {
	s := spec{
		WorkgroupSize: uint32(c.Threads), Subgroup: caps.SubgroupSize, Groups: uint32(c.Groups), Width: uint32(p.Width), Hidden: uint32(p.Hidden),
		Heads: uint32(p.Heads), KVHeads: uint32(p.KVHeads), HeadDim: uint32(p.HeadDim), Splits: uint32(c.Splits), Team: uint32(c.Team),
		Loads: uint32(c.Loads), AtOnce: uint32(c.Keys), Ahead: uint32(c.Ahead), Copies: uint32(c.Copies), Bias: p.Bias, Limit: limit,
	}
	if caps.Type == vk.CPU {
		s.Limit *= 64 // a thread may wait for another that is not on a core
	}
	return s
}
