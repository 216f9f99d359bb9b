package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/xent/ref"
	"github.com/flashvk/flashvk/pipelines/xent"
	"github.com/flashvk/flashvk/vk/kit"
)

// Xent is a call of xent.Forward or xent.Backward.
type Xent struct {
	xent.Problem
	Direction
	Impl              string
	Memory, Rows      int     // of Options
	Losses, LSE, Loss bool    // which of them is written
	DLoss             float64 // 0: none is given
	Ignored           int     // how many of four labels are Ignore
	Wrong             bool    // a label is no word
	Data
}

// Tidy drops options that need weights, and gives a call an output.
func (x *Xent) Tidy() {
	x.Frozen, x.Accumulate = x.Frozen && x.Dim > 0, x.Accumulate && x.Dim > 0 && !x.Frozen
	x.Loss = x.Loss || !x.Losses && !x.LSE
}

// Tensors implements Call. Logits are about Magnitude * Second, given ones about Magnitude.
func (x *Xent) Tensors() []Tensor {
	t, row, given := x.DType, []int{x.Tokens}, x.Dim == 0
	h, w, logits := []int{x.Tokens, x.Dim}, []int{x.Vocabulary, x.Dim}, []int{x.Tokens, x.Vocabulary}
	written, place := Output, Input
	if x.Backward {
		written, place = Gradient, Gradient // the pass computes the loss, too, and dx where the logits were
	}
	return []Tensor{
		{Name: "h", DType: t, Shape: h, Scale: x.Magnitude, Main: true, Off: given},
		{Name: "w", DType: t, Shape: w, Scale: OrOne(x.Second) / math.Sqrt(float64(max(x.Dim, 1))), Off: given},
		{Name: "logits", DType: t, Shape: logits, Role: place, Off: !given, Own: true},
		{Name: "labels", DType: dtype.Int32, Shape: row, Own: true, Ints: x.labels(), Free: true},
		{Name: "dloss", Shape: []int{1}, Role: Upstream, Off: x.DLoss == 0, Own: true},
		{Name: "losses", Shape: row, Role: written, Once: true, Off: !x.Losses},
		{Name: "lse", Shape: row, Role: written, Once: true, Off: !x.LSE},
		{Name: "loss", Shape: []int{1}, Role: written, Once: true, Off: !x.Loss},
		{Name: "dh", DType: t, Shape: h, Role: Gradient, Off: given},
		{Name: "dw", DType: x.GradDType(), Shape: w, Role: Gradient, Off: given || x.Frozen},
	}
}

// labels draws the label of each token.
func (x *Xent) labels() []int32 {
	rng, list := x.Rand(60), make([]int32, x.Tokens)
	for i := range list {
		if list[i] = rng.Int32N(int32(x.Vocabulary)); rng.IntN(4) < x.Ignored {
			list[i] = int32(x.IgnoreLabel())
		}
	}
	if x.Wrong {
		list[rng.IntN(len(list))] = one(rng, -1, int32(x.Vocabulary), math.MinInt32, math.MaxInt32)
	}
	return list
}

// Adjust implements Call. It draws labels, given logits, and what an accumulated dw held.
func (x *Xent) Adjust(v Values) {
	for _, label := range x.labels() {
		v["labels"] = append(v["labels"], float64(label))
	}
	if x.DLoss != 0 {
		v["dloss"] = []float64{x.DLoss}
	}
	if x.Dim == 0 {
		v["logits"] = x.Numbers(61, x.DType, x.Tokens*x.Vocabulary, OrOne(x.Magnitude))
	}
	if x.Accumulate && x.Backward {
		v["dw"] = x.Normal(62, x.GradDType(), x.Vocabulary*x.Dim, OrOne(x.Second))
	}
}

// Want implements Call. With Sample it has some tokens, of the mean over all; the loss and dw, which are
// of all tokens, must then only be written.
func (x *Xent) Want(v Values, pass kit.Pass) Outputs {
	if v["labels"] == nil {
		x.Adjust(v)
	}
	var in ref.Inputs
	Bind(v, &in)
	p, rows := x.Problem, SampleRows(x.Rand(63), x.Tokens, x.Sample)
	if rows != nil {
		p, in = x.sampled(rows, in)
	}
	r := ref.Compute(in, p, x.division(pass), pass == kit.Backward)
	of := func(r ref.Result, cols int) Wanted {
		w := Wanted{Want: r.Want, Bounds: r.Bounds}
		if rows != nil && cols > 0 {
			w.Sample = Elements(rows, cols)
		}
		return w
	}
	list := Outputs{"losses": of(r.Losses, 1), "lse": of(r.LSE, 1), "loss": of(r.Loss, 0)}
	if pass == kit.Backward {
		list["logits"], list["dh"], list["dw"] = of(r.DX, x.Vocabulary), of(r.DH, x.Dim), of(r.DW, 0)
	}
	if rows != nil {
		list["loss"] = Wanted{Want: make([]float64, 1), Any: true}
		list["dw"] = Wanted{Want: make([]float64, x.Vocabulary*x.Dim), Any: true}
	}
	return list
}

// division bounds how often dw and dh are rounded: devices see 128 MiB of a buffer at the least.
func (x *Xent) division(pass kit.Pass) ref.Division {
	caps := TypicalCaps(false)
	caps.MaxStorageBufferRange = 1 << 27
	plan, err := xent.Choose(caps, x.Problem, pass, xent.Options{Memory: int64(x.Memory), Rows: x.Rows})
	if err != nil {
		return ref.Division{Chunks: 1, Parts: 1}
	}
	return ref.Division{Chunks: (x.Tokens + plan.Tokens - 1) / plan.Tokens, Parts: (x.Vocabulary + plan.Rows - 1) / plan.Rows}
}

// sampled returns the problem of some tokens, with the gradients that they have among all.
func (x *Xent) sampled(rows []int, all ref.Inputs) (xent.Problem, ref.Inputs) {
	p, in := x.Problem, ref.Inputs{W: all.W}
	counted := 0.0
	for _, label := range all.Labels {
		if int(label) != x.IgnoreLabel() {
			counted++
		}
	}
	each := OrOne(x.DLoss)
	if !p.Sum {
		each /= max(counted, 1)
	}
	in.DLoss = []float64{each}
	p.Tokens, p.Sum, p.Frozen, p.Accumulate = len(rows), true, p.Dim > 0, false
	for _, t := range rows {
		in.Labels = append(in.Labels, all.Labels[t])
		if p.Dim > 0 {
			in.H = append(in.H, all.H[t*p.Dim:(t+1)*p.Dim]...)
		} else {
			in.Logits = append(in.Logits, all.Logits[t*p.Vocabulary:(t+1)*p.Vocabulary]...)
		}
	}
	return p, in
}

func (x *Xent) Host() Host {
	return hosted(x, x.Problem, xent.Choose, xent.Forward, xent.Backward)
}

// drawXent draws the cross entropy of a last layer, or of given logits.
func drawXent(family, rng *rand.Rand, s Space) Call {
	x := &Xent{}
	given := chance(family, 4)
	var ok bool
	if x.DType, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	if x.Impl, ok = s.Impl(family, "auto", engine.CoopMat.String(), engine.Scalar.String()); !ok {
		return nil
	}
	if x.Backward = family.IntN(3) > 0; !given {
		x.Frozen = chance(family, 4)
		x.Accumulate = chance(family, 3) && !x.Frozen
		if chance(family, 2) {
			x.Grad = dtype.Some(dtype.Float32)
		}
	}
	x.Losses, x.LSE, x.Loss, x.Sum = chance(family, 2), chance(family, 2), chance(family, 2), chance(rng, 4)
	x.Data = DrawData(family, rng)
	x.Tokens, x.Vocabulary, x.Dim = Size(rng, 500), Size(rng, 5000), Size(rng, 300)
	if chance(rng, 3) { // rows of many tiles
		x.Tokens, x.Vocabulary, x.Dim = 1+rng.IntN(4), 2000+rng.IntN(10000), 1+rng.IntN(10)
	}
	cost := func() float64 { return 20 * float64(x.Tokens) * float64(x.Vocabulary) * float64(x.Dim) }
	if given {
		x.Tokens, x.Vocabulary, x.Dim = Size(rng, 500), Size(rng, 20000), 0
		cost = func() float64 { return 200 * float64(x.Tokens) * float64(x.Vocabulary) }
		Within(rng, s.Budget(rng), cost, &x.Tokens, &x.Vocabulary)
	} else {
		Within(rng, s.Budget(rng), cost, &x.Tokens, &x.Vocabulary, &x.Dim)
		if chance(rng, 2) {
			x.Memory = 4 * ((x.Vocabulary + 7) / 8 * 8) * Size(rng, x.Tokens)
		}
		if chance(rng, 3) {
			x.Rows = Size(rng, x.Vocabulary)
		}
	}
	x.Ignored, x.Wrong, x.Ignore = one(rng, 0, 1, 1, 4), chance(rng, 16), one(rng, 0, 0, -1, 3)
	x.Smoothing, x.ZLoss = one(rng, 0, 0, 0.1, 1), one(rng, 0, 0, 1e-4, 0.01)
	x.Magnitude = min(x.Magnitude, Most(x.DType)/x.Largest())
	if given {
		x.Magnitude = min(x.Magnitude, 30)
	}
	x.Second = min(x.Second, 30/OrOne(x.Magnitude), 1000)
	x.scale(rng)
	x.Tidy()
	return x
}

// scale draws DLoss such that gradients are within their format.
func (x *Xent) scale(rng *rand.Rand) {
	if chance(rng, 2) {
		x.DLoss = TenTo(rng, -2, 2)
	}
	largest := 1 + x.ZLoss*40*x.Largest() // of a gradient by a logit, with the mean
	most := largest * max(1, x.Largest()*OrOne(x.Magnitude), 2*x.Largest()*OrOne(x.Second))
	if x.Sum {
		most *= float64(x.Tokens)
	}
	if limit := Most(x.DType) / 4; most*OrOne(x.DLoss) > limit {
		x.DLoss = limit / most
	}
}
