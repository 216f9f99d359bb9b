package call

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk/kit"
)

// Attention is a call of attention.Forward or attention.Backward. Layout has a letter each for q, k,
// v, o, lse and the tensors of features: Packed and those after it.
type Attention struct {
	attention.Problem
	Direction
	Impl attention.Impl
	// The configuration of the pass; nil: the tuning table's. A DecodeConfig makes the forward pass
	// take the kernels of Decode.
	Config         *attention.Config         `json:",omitempty"`
	BackwardConfig *attention.BackwardConfig `json:",omitempty"`
	DecodeConfig   *attention.DecodeConfig   `json:",omitempty"`

	// Lengths are the rows and keys of each sequence of a Varlen. Slack rows and keys after the last
	// sequence belong to none. Tidy sets what follows.
	Lengths [][2]int `json:",omitempty"`
	Slack   int

	Mask       MaskKind // which keys a KeyMask hides
	HidingBias bool     // the bias is -Inf for one key in 8, or in the pattern of a Mask that is not RandomMask
	NoLSE      bool     // the forward pass writes no LSE
	DO         UpstreamKind
	DLSE       bool // LSE has a gradient
	NoDBias    bool // the backward pass leaves out the gradients of bias and sinks
	Sizes      Sizes
	Data
}

// Sizes are factors of the values of tensors; 0 stands for 1.
type Sizes struct{ Q, K, V, DO, DLSE, Bias float64 }

func (a *Attention) Validate() error {
	if err := a.Problem.Validate(); err != nil {
		return err
	}
	q, kv := a.CuSeqlens()
	p := &a.Problem
	switch {
	case !p.Varlen.On && a.Lengths != nil:
		return fmt.Errorf("call: lengths of sequences that are not packed")
	case p.Varlen.On && (len(a.Lengths) != p.Batch || int(q[len(q)-1])+a.Slack > p.Varlen.TotalQ || int(kv[len(kv)-1])+a.Slack > p.Varlen.TotalKV):
		return fmt.Errorf("call: lengths %v do not fit %v", a.Lengths, p)
	}
	return nil
}

// Tidy sets the fields that follow from the others.
func (a *Attention) Tidy() {
	p := &a.Problem
	p.HeadDim, p.ValueDim = (p.HeadDim+7)/8*8, (p.ValueDim+7)/8*8
	if p.NumKVHeads > 0 {
		p.NumHeads = max(1, p.NumHeads/p.NumKVHeads) * p.NumKVHeads
	}
	a.Pack()
	if !p.Window.On {
		p.Window = attention.Window{}
	}
	if !p.Causal && !p.Window.On && p.ALiBi == attention.ALiBiOff {
		p.CausalAlign = attention.BottomRight
	}
	if !p.Dropout.On() {
		p.Dropout = attention.Dropout{}
	}
	if p.DType == dtype.Float32 || a.Backward || a.Impl == attention.Unfused || a.DecodeConfig != nil {
		p.Quant = dtype.NoQuant
	}
	if !p.Bias.On {
		p.Bias, a.HidingBias, a.Sizes.Bias = attention.Bias{}, false, 0
	}
	if !p.KeyMask && !a.HidingBias {
		a.Mask = RandomMask
	}
	if a.Kind == HugeKind {
		p.Scale = HugeScale(p)
	}
	if a.Config != nil && a.Config.Splits > 1 {
		c := *a.Config
		c.Splits = min(c.Splits, (p.SeqKV+c.BlockN-1)/c.BlockN)
		a.Config = &c
	}
}

// Pack sets what follows from Lengths, and removes them if sequences are not packed.
func (a *Attention) Pack() {
	p := &a.Problem
	if !p.Varlen.On {
		p.Varlen, a.Lengths, a.Slack = attention.Varlen{}, nil, 0
		return
	}
	p.Batch, p.SeqQ, p.SeqKV = len(a.Lengths), 1, 1
	p.Varlen.TotalQ, p.Varlen.TotalKV = a.Slack, a.Slack
	for _, n := range a.Lengths {
		p.SeqQ, p.SeqKV = max(p.SeqQ, n[0]), max(p.SeqKV, n[1])
		p.Varlen.TotalQ += n[0]
		p.Varlen.TotalKV += n[1]
	}
}

// CuSeqlens returns where the sequences of a Varlen begin; nil for none.
func (a *Attention) CuSeqlens() (q, kv []int32) {
	if !a.Varlen.On {
		return nil, nil
	}
	q, kv = []int32{0}, []int32{0}
	for b, n := range a.Lengths {
		q, kv = append(q, q[b]+int32(n[0])), append(kv, kv[b]+int32(n[1]))
	}
	return q, kv
}

// FLOPs returns the operations of the forward pass, for the lengths of sequences.
func (a *Attention) FLOPs() float64 {
	if !a.Varlen.On {
		return a.Problem.FLOPs()
	}
	return a.FLOPsOf(a.CuSeqlens())
}

// BackwardFLOPs returns the FLOPs of the backward pass, as attention.Problem.BackwardFLOPs.
func (a *Attention) BackwardFLOPs() float64 {
	d, dv := float64(a.HeadDim), float64(a.ValueHeadDim())
	return a.FLOPs() / (d + dv) * (3*d + 2*dv)
}

// Tensors implements Call. A gradient has the layout of another tensor than its own, so that a
// kernel that confuses the strides of the two is found.
func (a *Attention) Tensors() []Tensor {
	p := &a.Problem
	q, kv := a.CuSeqlens()
	rows, keys := 0, 0 // in sequences
	if q != nil {
		rows, keys = int(q[len(q)-1]), int(kv[len(kv)-1])
	}
	// Axis counts rows of packed sequences, of which only rows in a sequence count; -1: none does.
	tensor := func(name string, role Role, letter int, t dtype.DType, shape []int, axis, rows int, on bool) Tensor {
		x, packed := Tensor{Name: name, DType: t, Shape: shape, Own: true, Role: role, Off: !on}, p.Varlen.On && axis >= 0
		if packed {
			x.Part = slices.Clone(shape)
			x.Part[axis] = rows
		}
		if a.Layout != "" {
			x.Place = place(a.Layout[letter%len(a.Layout)], shape, packed && axis == 0)
		}
		return x
	}
	const features = 5 // the letter of their layout
	half, f32, i32 := p.DType, dtype.Float32, dtype.Int32
	return []Tensor{
		tensor("q", Input, 0, half, p.QShape(), 0, rows, true),
		tensor("k", Input, 1, half, p.KShape(), 0, keys, true),
		tensor("v", Input, 2, half, p.VShape(), 0, keys, true),
		tensor("o", Output, 3, half, p.OShape(), 0, rows, true),
		tensor("lse", Output, 4, f32, p.LSEShape(), 1, rows, !a.NoLSE || a.Backward),
		tensor("do", Upstream, 0, half, p.OShape(), 0, rows, true),
		tensor("dq", Gradient, 3, half, p.QShape(), 0, rows, true),
		tensor("dk", Gradient, 2, half, p.KShape(), 0, keys, true),
		tensor("dv", Gradient, 1, half, p.VShape(), 0, keys, true),
		tensor("bias", Input, features, p.Bias.DType, p.BiasShape(), -1, 0, p.Bias.On),
		tensor("alibi_slopes", Input, features, f32, p.SlopesShape(), -1, 0, p.ALiBi != attention.ALiBiOff),
		tensor("key_mask", Input, features, dtype.Bool, p.KeyMaskShape(), -1, 0, p.KeyMask),
		tensor("sinks", Input, features, f32, p.SinksShape(), -1, 0, p.Sinks),
		tensor("cu_seqlens_q", Input, features, i32, p.CuSeqlensShape(), -1, 0, p.Varlen.On),
		tensor("cu_seqlens_kv", Input, features, i32, p.CuSeqlensShape(), -1, 0, p.Varlen.On),
		tensor("dlse", Upstream, 3, f32, p.LSEShape(), 1, rows, a.DLSE),
		tensor("dbias", Gradient, 1, p.Bias.DType, p.BiasShape(), -1, 0, p.Bias.On && !a.NoDBias),
		tensor("dsinks", Gradient, 1, f32, p.SinksShape(), -1, 0, p.Sinks && !a.NoDBias),
	}
}

// inputs returns tensors as the reference has them.
func (a *Attention) inputs(x Values) (in ref.Inputs[float64], up ref.Upstream[float64]) {
	Bind(x, &in, &up)
	in.CuSeqlensQ, in.CuSeqlensKV = a.CuSeqlens()
	for _, visible := range x["key_mask"] {
		in.KeyMask = append(in.KeyMask, visible != 0)
	}
	return in, up
}

// First returns the forward pass whose outputs have to come from a device, since the reference of all
// its rows would take too long; nil: none.
func (a *Attention) First() Call {
	if !a.Backward || a.rows() == nil {
		return nil
	}
	forward := *a
	forward.Backward, forward.NoLSE, forward.BackwardConfig = false, false, nil
	forward.Sample = 1 // what it should be is not compared
	return &forward
}

// The least rows and keys of a sample.
const leastRows, leastKeys = 16, 8

// rows returns the rows that are compared; nil: all.
func (a *Attention) rows() []ref.Row {
	in, _ := a.inputs(nil)
	if a.Sample == 0 || a.Sample >= in.NumRows(a.Problem) {
		return nil
	}
	return ref.SampleRows(in, a.Problem, max(a.Sample, leastRows))
}

// Want implements Call. Rows that see no key, and gradients of what is hidden, are exactly 0.
func (a *Attention) Want(x Values, pass kit.Pass) Outputs {
	in, up := a.inputs(x)
	var out Outputs
	var err error
	if pass == kit.Backward {
		out, err = a.wantBackward(in, up, x["o"], x["lse"])
	} else {
		out, err = a.wantForward(in)
	}
	if err != nil {
		panic(err) // Validate refuses it
	}
	return out
}

func (a *Attention) wantForward(in ref.Inputs[float64]) (Outputs, error) {
	p, d := a.Problem, a.ValueHeadDim()
	in = in.Quantised(p)
	shape, rows := p.LSEShape(), a.rows()
	if rows != nil {
		shape = []int{len(rows)}
	}
	o, lse, plain := blank(append(slices.Clone(shape), d)), blank(shape), make([]float64, Product(shape)*d)
	if err := cmp.Or(ref.Forward(o.Want, lse.Want, in, p, rows), ref.Plain(plain, nil, in, p, rows)); err != nil {
		return nil, err
	}
	b := ref.PlainBound(o.Want, plain, lse.Want, ref.Measure(in, p), p)
	if p.Quant != dtype.NoQuant {
		doubt := ref.QuantBound(in, p, rows)
		b.O, b.LSE = b.O+doubt.O, b.LSE+doubt.LSE
	}
	fill(o.Bounds, b.O)
	fill(lse.Bounds, b.LSE)
	for _, r := range rows {
		atO, atLSE := in.At(p, r)
		o.Sample, lse.Sample = append(o.Sample, Elements([]int{atO}, d)...), append(lse.Sample, atLSE)
	}
	for n := range in.NumRows(p) {
		r := in.Row(p, n)
		if !in.SeesNothing(p, r) {
			continue
		}
		atO, atLSE := in.At(p, r)
		o.exact(atO*d, d, 0)
		if rows != nil && (!p.Sinks || math.IsInf(in.Sinks[r.Head], -1)) {
			lse.exact(atLSE, 1, math.Inf(-1))
		}
	}
	return Outputs{"o": o, "lse": lse}, nil
}

// fill sets all elements.
func fill(x []float64, v float64) {
	for i := range x {
		x[i] = v
	}
}

// exact wants n elements from one on to be exactly a number. In a sample they are added.
func (w *Wanted) exact(from, n int, x float64) {
	for i := from; i < from+n; i++ {
		if w.Sample == nil {
			w.Bounds[i] = 0
			continue
		}
		w.Sample, w.Want, w.Bounds = append(w.Sample, i), append(w.Want, x), append(w.Bounds, 0)
	}
}

func (a *Attention) wantBackward(in ref.Inputs[float64], up ref.Upstream[float64], o, lse []float64) (out Outputs, err error) {
	p := a.Problem
	if o == nil {
		if o, lse, err = ref.Saved(in, p); err != nil {
			return nil, err
		}
	}
	saved := Outputs{"o": {Want: o}, "lse": {Want: lse}}
	if a.rows() != nil {
		out, err = a.sampleBackward(in, up, o, lse)
		return out.With(saved), err
	}
	want, scope, err := ref.Backward(up, in, p)
	if err != nil {
		return nil, err
	}
	plain, err := ref.PlainBackward(o, lse, up, in, p)
	if err != nil {
		return nil, err
	}
	out = Pair(want, ref.GradientBounds(want, plain, scope, p))
	a.exactGradients(in, out)
	return out.With(saved), nil
}

// exactGradients wants gradients of what is hidden to be exactly 0.
func (a *Attention) exactGradients(in ref.Inputs[float64], out Outputs) {
	p := a.Problem
	zero := func(name string, row, d int) {
		w := out[name]
		if w.Sample == nil && w.Bounds == nil {
			w.Bounds = slices.Repeat([]float64{w.Bound}, len(w.Want))
		}
		w.exact(row*d, d, 0)
		out[name] = w
	}
	for n := range in.NumRows(p) {
		if r := in.Row(p, n); in.SeesNothing(p, r) {
			at, _ := in.At(p, r)
			zero("dq", at, p.HeadDim)
		}
	}
	in.Hidden(p, func(row int, slack bool) {
		if !slack {
			zero("dk", row, p.HeadDim)
			zero("dv", row, p.ValueHeadDim())
		}
	})
}

// sampleBackward is wantBackward of some rows and keys. It wants gradients of bias and sinks to be
// finite.
func (a *Attention) sampleBackward(in ref.Inputs[float64], up ref.Upstream[float64], o, lse []float64) (Outputs, error) {
	p := a.Problem
	d, dv := float64(p.HeadDim), float64(p.ValueHeadDim())
	half := 2 * float64(a.Sample) * float64(p.SeqKV) * (d + dv) // operations of the rows, and of the keys
	perRow := 4 * float64(p.SeqKV) * (2*d + dv)
	perKey := 8 * float64(p.SeqQ) * float64(p.NumHeads/p.NumKVHeads) * (d + dv)
	rows := ref.SampleRows(in, p, max(int(half/perRow), leastRows))
	keys := ref.SampleKeys(in, p, max(int(half/perKey), leastKeys))
	g, b, err := ref.SampleBackward(o, lse, up, in, p, rows, keys)
	if err != nil {
		return nil, err
	}
	var atRows, atKeys []int
	for _, r := range rows {
		at, _ := in.At(p, r)
		atRows = append(atRows, at)
	}
	for _, k := range keys {
		atKeys = append(atKeys, in.KeyAt(p, k))
	}
	sample := func(want []float64, bound float64, at []int, d int) Wanted {
		return Wanted{Want: want, Bounds: slices.Repeat([]float64{bound}, len(want)), Sample: Elements(at, d)}
	}
	none := Wanted{Want: []float64{}, Bounds: []float64{}, Sample: []int{}}
	out := Outputs{
		"dq":    sample(g.DQ, b.DQ, atRows, p.HeadDim),
		"dk":    sample(g.DK, b.DK, atKeys, p.HeadDim),
		"dv":    sample(g.DV, b.DV, atKeys, p.ValueHeadDim()),
		"dbias": none, "dsinks": none,
	}
	a.exactGradients(in, out)
	return out, nil
}

func (a *Attention) Host() Host {
	return hosted(a, a.Problem, attention.Choose, attention.Forward, attention.Backward)
}

// Letters of Attention's Layout. "·" is garbage, which is also on both sides of all but Packed.
const (
	Packed    = "p" // (batch, heads, seq, dim) from offset 0 on
	BSHD      = "b" // (batch, seq, heads, dim): h0 h1 h2 h0 h1 h2
	SBHD      = "s" // (seq, batch, heads, dim)
	FusedQKV  = "f" // (batch, seq, 3, heads, dim), the middle third: · · h0 h1 · · · · h0 h1 · ·
	Cache     = "c" // room for more rows after each head's last: h0 h0 · · h1 h1 · ·
	Padded    = "d" // 8 elements between rows: 16-byte loads remain possible
	Odd       = "o" // 3 elements between rows, and an odd offset
	OddOffset = "x" // contiguous from an odd offset on
)

// AlignedLayouts has the letters of layouts whose rows begin at multiples of 8 elements, OddLayouts
// the others.
const AlignedLayouts, OddLayouts = Packed + BSHD + SBHD + FusedQKV + Cache + Padded, Odd + OddOffset

// place returns where a tensor of (batch, heads, rows, dim) or packed (rows, heads, dim) lies. All
// other shapes end with an axis of rows, and have no dim.
func place(letter byte, shape []int, packed bool) *guard.Place {
	const guardElements, guardRows, cacheRows = 64, 16, 24
	x := &guard.Place{Offset: guardElements}
	gap, flat := 0, !packed && len(shape) < 4
	switch string(letter) {
	case Packed:
		x.Offset = 0
	case Padded:
		gap = 8
	case Odd:
		gap, x.Offset = 3, guardElements+5
	case OddOffset:
		x.Offset = guardElements + 7
	case Cache, FusedQKV:
		if flat { // between heads of LSE
			gap = 8
		}
	}
	axes := append([]int{1, 1, 1}[:4-len(shape)], shape...)
	if packed {
		axes = []int{1, shape[1], shape[0], shape[2]}
	}
	b, h, s, d := axes[0], axes[1], axes[2], axes[3]
	row := d + gap
	strides := []int{h * s * row, s * row, row, 1}
	x.After = guardElements + guardRows*row
	switch {
	case flat:
		x.After = guardElements
	case string(letter) == BSHD:
		strides = []int{s * h * d, d, h * d, 1}
	case string(letter) == SBHD:
		strides = []int{h * d, d, b * h * d, 1}
	case string(letter) == FusedQKV:
		strides = []int{s * 3 * h * d, d, 3 * h * d, 1}
		x.Offset += h * d
	case string(letter) == Cache:
		strides = []int{h * (s + cacheRows) * d, (s + cacheRows) * d, d, 1}
	}
	if x.Strides = strides[4-len(shape):]; packed {
		x.Strides = []int{strides[2], strides[1], 1}
	}
	return x
}
