package call

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/decoder/ref"
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Decoder is a call of decoder.Forward, or with Layers of decoder.ForwardLayers: tensors of layers are one, along the first axis.
type Decoder struct {
	decoder.Problem
	Config *decoder.Config
	Length int // keys in the cache
	Layers int // 0: one, by Forward
	onePass
	Data
}

// FLOPs and Bytes are of all layers.
func (d *Decoder) FLOPs() float64 { return float64(max(d.Layers, 1)) * d.Problem.FLOPs() }
func (d *Decoder) Bytes() float64 { return float64(max(d.Layers, 1)) * d.Problem.Bytes() }

// Tensors implements Call. Elements of v are about Second, elements of x about Magnitude.
func (d *Decoder) Tensors() []Tensor {
	l, w, qkv, attended := max(d.Layers, 1), d.Width, (d.Heads+2*d.KVHeads)*d.HeadDim, d.Heads*d.HeadDim
	matrix := func(name string, rows, cols int) Tensor {
		return Tensor{Name: name, DType: d.DType, Shape: []int{l * rows, cols}, Scale: 1 / math.Sqrt(float64(cols)), Align: 8}
	}
	cos := Tensor{Name: "cos", Shape: []int{d.Keys, d.HeadDim / 2}, Own: true, Place: &guard.Place{Offset: int(d.Seed % 5)}}
	sin := cos
	sin.Name = "sin"
	cache := []int{l * d.KVHeads, d.Keys, d.HeadDim}
	return []Tensor{
		{Name: "x", DType: d.DType, Shape: []int{1, w}, Scale: d.Magnitude, Main: true},
		cos, sin,
		{Name: "seq_lens", DType: dtype.Int32, Shape: []int{1}, Own: true, Most: d.Keys, Ints: []int32{int32(d.Length)}},
		{Name: "norm_a", Shape: []int{l * w}},
		matrix("qkv", qkv, w),
		{Name: "bias", Shape: []int{l * qkv}, Off: !d.Bias},
		matrix("out", w, attended),
		{Name: "norm_b", Shape: []int{l * w}},
		matrix("gate_up", 2*d.Hidden, w),
		matrix("down", w, d.Hidden),
		{Name: "k", DType: d.DType, Shape: cache, Role: Update, Align: 8},
		{Name: "v", DType: d.DType, Shape: cache, Role: Update, Scale: d.Second, Align: 8},
		{Name: "y", DType: d.DType, Shape: []int{1, w}, Role: Output},
	}
}

// Adjust draws the length and angles.
func (d *Decoder) Adjust(x Values) {
	x["seq_lens"] = []float64{float64(d.Length)}
	cos, sin := attention.Frequencies{Dims: d.HeadDim}.Table(d.Keys)
	x["cos"], x["sin"] = Wide(cos), Wide(sin)
}

func (d *Decoder) Want(x Values, _ kit.Pass) Outputs {
	in := ref.Inputs{SeqLens: []float64{float64(d.Length)}} // which commands leave out
	Bind(x, &in)
	out := ref.Forward(in, d.Problem, max(d.Layers, 1))
	return Outputs{"y": {Want: out.Y, Bounds: out.YBounds}, "k": {Want: out.K, Bounds: out.KBounds}, "v": {Want: out.V, Bounds: out.VBounds}}
}

func (d *Decoder) Host() Host {
	if d.Layers == 0 {
		return hostedForward(d, d.Problem, decoder.Choose, decoder.Forward)
	}
	return Host{Choose: d.choose, Bind: d.bind}
}

func (d *Decoder) choose(caps *vk.Caps, pass kit.Pass) (kit.Plan, error) {
	plan, err := decoder.Choose(caps, d.Problem, pass, decoder.Options{Config: d.Config})
	return simplePlan{plan.String(), int64(d.Layers) * plan.Workspace(), plan.Kernels()}, err
}

func (d *Decoder) bind(t map[string]vk.Tensor, workspace *vk.Buffer, _ kit.Pass) Recording {
	list := make([]decoder.Tensors, d.Layers)
	for i := range list {
		of := map[string]vk.Tensor{}
		for name, all := range t {
			switch n := all.Shape[0]; {
			case name == "x" && i > 0, name == "y" && i < d.Layers-1:
				continue
			case !slices.Contains([]string{"x", "y", "cos", "sin", "seq_lens"}, name):
				all = all.Slice(0, i*n/d.Layers, (i+1)*n/d.Layers)
			}
			of[name] = all
		}
		Bind(of, &list[i])
	}
	return func(c *vk.Cmd) error {
		return decoder.ForwardLayers(c, list, d.Problem, decoder.Options{Config: d.Config, Workspace: workspace})
	}
}

// drawDecoder draws layers whose numbers are within their format.
func drawDecoder(family, rng *rand.Rand, s Space) Call {
	t, ok := s.DType(family, dtype.Float16, dtype.BFloat16)
	if !ok {
		return nil
	}
	d := &Decoder{Problem: decoder.Problem{DType: t, KVHeads: 1 + family.IntN(3), HeadDim: one(family, 64, 64, 128), Bias: chance(family, 2)}}
	d.Heads = d.KVHeads * (1 + family.IntN(512/d.HeadDim))
	d.Layers, d.Width, d.Hidden = family.IntN(3), 8*(1+family.IntN(25)), 8*(1+family.IntN(40))
	for caps := TypicalCaps(s.Soft); family.IntN(2) == 0 && d.Config == nil; {
		c := decoder.Config{
			Groups: 1 + family.IntN(max(1, int(caps.ComputeUnits))), Threads: 32 << family.IntN(5), Splits: 1 + family.IntN(8), Team: 4 << family.IntN(4),
			Loads: 1 + family.IntN(8), Keys: 1 + family.IntN(4), Ahead: family.IntN(4), Copies: 1 + family.IntN(4), Beside: !s.Soft && chance(family, 2), // of which the validation layer warns
		}
		if c.Feasible(caps, d.Problem) == nil {
			d.Config = &c
		}
	}
	d.Data = DrawData(family, rng)
	d.Magnitude, d.Second = max(0.01, min(d.Magnitude, 100)), max(0.01, min(d.Second, 100))
	d.Keys, d.Eps = 1+rng.IntN(300), one(rng, 1e-5, 1e-6, 1e-3)
	if d.Length = rng.IntN(d.Keys); chance(rng, 20) {
		d.Length = one(rng, -1, d.Keys, d.Keys+7)
	}
	return d
}
