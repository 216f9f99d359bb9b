package trial

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/optim/ref"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

// optimKernel draws steps of AdamW.
func optimKernel() Kernel {
	return Kernel{Name: "optim", Weight: 1, New: func() Problem { return &optimProblem{} }, Draw: drawOptim}
}

// optimProblem is a step of optim.AdamW.
type optimProblem struct {
	Sizes       []int // of the tensors; every other one has no weight decay
	Grad, Copy  dtype.DType
	HasCopy     bool
	Arena       bool // tensors of a kind lie in one buffer, so that there is one launch
	Beta1       float64
	Beta2       float64
	Eps         float64
	WeightDecay float64
	Clip        string  // "": no norm; clipNothing: a norm that clips nothing; clipNorm: one that clips
	ClipBy      float64 // of the norm
	Infinite    bool    // a gradient is infinite: with a norm the step is skipped
	LR          float64
	Done        int // steps before
	kernelData
}

// What there is to clip.
const (
	clipNothing = "norm"
	clipNorm    = "clip"
)

// String implements Problem.
func (p *optimProblem) String() string {
	return fmt.Sprintf("step %d of %v, gradients %v, copy=%v %v, clip=%s %g", p.Done+1, p.Sizes, p.Grad, p.HasCopy, p.Copy, p.Clip, p.ClipBy)
}

// Supports implements Problem.
func (p *optimProblem) Supports(caps *vk.Caps) error { return optim.Supports(caps, p.hyper()) }

// hyper returns the constants, without a norm.
func (p *optimProblem) hyper() optim.Problem {
	return optim.Problem{LR: p.LR, Beta1: p.Beta1, Beta2: p.Beta2, Eps: p.Eps, WeightDecay: p.WeightDecay}
}

// A optimStep is a problem with its data.
type optimStep struct {
	hyper  optim.Problem
	before []ref.Param
	grads  [][]float64
	norm   float64
	skip   bool
}

// build draws the data.
func (p *optimProblem) build() (x optimStep) {
	x.hyper = p.hyper()
	size := call.OrOne(p.Magnitude)
	for i, n := range p.Sizes {
		b := ref.Param{
			Param: p.Normal(10*i, dtype.Float32, n, call.OrOne(p.Second)), M: p.Normal(10*i+1, dtype.Float32, n, 0.1*size),
			V: make([]float64, n), NoDecay: i%2 == 1,
		}
		rng := p.Rand(10*i + 2)
		for j := range b.V {
			b.V[j] = float64(float32(0.01 * size * size * rng.ExpFloat64()))
		}
		if p.Done == 0 {
			clear(b.M)
			clear(b.V)
		}
		x.before, x.grads = append(x.before, b), append(x.grads, p.Numbers(10*i+3, p.Grad, n, size))
	}
	x.norm = ref.Norm(x.grads...)
	switch p.Clip {
	case clipNothing:
		x.hyper.MaxNorm = math.Inf(1)
	case clipNorm:
		x.hyper.MaxNorm = max(float64(float32(x.norm*p.ClipBy)), 1e-30)
	}
	if p.Infinite {
		rng := p.Rand(9)
		g := x.grads[rng.IntN(len(x.grads))]
		g[rng.IntN(len(g))] = []float64{math.NaN(), math.Inf(1), math.Inf(-1)}[rng.IntN(3)]
		x.skip = true
	}
	return x
}

// kinds are the tensors of a parameter, in their order.
var optimKinds = []string{"grad", "param", "m", "v", "copy"}

// tensors returns those of every parameter.
func (p *optimProblem) tensors(x *optimStep) []guard.Tensor {
	copyTo := dtype.Float32
	if p.HasCopy {
		copyTo = p.Copy
	}
	scale := ref.Scale(x.hyper, x.norm)
	var list []guard.Tensor
	for i, b := range x.before {
		want := b
		var bounds ref.Bounds
		ofCopy := p.Normal(10*i+4, copyTo, len(b.Param), 1)
		wantCopy := ofCopy
		if !x.skip {
			want = ref.Step(x.hyper, b, x.grads[i], scale, p.Done+1)
			plain := ref.PlainStep(x.hyper, b, x.grads[i], scale, p.Done+1)
			bounds = ref.NewBounds(x.hyper, b, x.grads[i], scale, p.Done+1, want, plain, copyTo)
			wantCopy = want.Param
		}
		shape := []int{len(b.Param)}
		list = append(list,
			guard.Tensor{Name: fmt.Sprint("grad", i), DType: p.Grad, Shape: shape, Values: x.grads[i]},
			guard.Tensor{Name: fmt.Sprint("param", i), Shape: shape, Values: b.Param, Want: want.Param, Bound: bounds.Param},
			guard.Tensor{Name: fmt.Sprint("m", i), Shape: shape, Values: b.M, Want: want.M, Bound: bounds.M},
			guard.Tensor{Name: fmt.Sprint("v", i), Shape: shape, Values: b.V, Want: want.V, Bound: bounds.V})
		if p.HasCopy {
			t := guard.Tensor{Name: fmt.Sprint("copy", i), DType: copyTo, Shape: shape, Want: wantCopy, Bound: bounds.Copy}
			if x.skip {
				t.Values = ofCopy
			}
			list = append(list, t)
		}
	}
	return list
}

// arena joins the tensors of each kind to one.
func arena(list []guard.Tensor, params int) (joined []guard.Tensor) {
	each := len(list) / params
	for k := range each {
		t := guard.Tensor{Name: optimKinds[k], DType: list[k].DType, Shape: []int{0}}
		for i := range params {
			x := &list[i*each+k]
			t.Shape[0] += x.Shape[0]
			t.Values, t.Want = append(t.Values, x.Values...), append(t.Want, x.Want...)
			t.Bound = max(t.Bound, x.Bound)
		}
		joined = append(joined, t)
	}
	return joined
}

// params returns what the optimizer is given.
func (p *optimProblem) params(t map[string]vk.Tensor) (list []optim.Param) {
	at := 0
	for i, n := range p.Sizes {
		get := func(kind string) vk.Tensor {
			if !p.Arena {
				return t[fmt.Sprint(kind, i)]
			}
			x := t[kind]
			if !x.IsZero() {
				x.Shape, x.Strides = []int{n}, []int{1}
				x.Offset += at
			}
			return x
		}
		list = append(list, optim.Param{Name: fmt.Sprint(i), Tensors: optim.Tensors{Param: get("param"), Grad: get("grad"), M: get("m"), V: get("v"), Copy: get("copy")}, NoDecay: i%2 == 1})
		at += n
	}
	return list
}

// Check implements Problem.
func (p *optimProblem) Check(ctx context.Context, r *Runner) error {
	x := p.build()
	list := p.tensors(&x)
	if p.Arena {
		list = arena(list, len(p.Sizes))
	}
	var made []*optim.AdamW
	defer func() {
		for _, a := range made {
			a.Close()
		}
	}()
	err := p.check(ctx, r, "optim", list, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		a, err := optim.New(ctx, r.Device(), p.params(t), x.hyper)
		if err != nil {
			return err
		}
		made = append(made, a)
		if err := a.SetStep(ctx, p.Done); err != nil {
			return err
		}
		return a.Step(c)
	})
	if err != nil {
		return err
	}
	for _, a := range made {
		if err := x.state(ctx, a, p.Done); err != nil {
			return err
		}
	}
	return nil
}

// state checks what the optimizer counts.
func (x *optimStep) state(ctx context.Context, a *optim.AdamW, done int) error {
	word := func(t vk.Tensor) (uint32, error) {
		var b [4]byte
		err := t.DownloadRaw(ctx, b[:])
		return binary.LittleEndian.Uint32(b[:]), err
	}
	steps, skipped := uint32(done+1), uint32(0)
	if x.skip {
		steps, skipped = uint32(done), 1
	}
	for _, s := range []struct {
		name string
		t    vk.Tensor
		want uint32
	}{{"count", a.Count(), steps}, {"skipped", a.Skipped(), skipped}} {
		got, err := word(s.t)
		if err != nil {
			return err
		}
		if got != s.want {
			return fmt.Errorf("%s is %d, want %d", s.name, got, s.want)
		}
	}
	bits, err := word(a.Norm())
	if err != nil {
		return err
	}
	got, want := float64(math.Float32frombits(bits)), x.norm
	if x.hyper.MaxNorm == 0 {
		want = 0
	}
	if x.skip {
		if !math.IsInf(got, 0) && !math.IsNaN(got) {
			return fmt.Errorf("norm is %g of gradients that are not finite", got)
		}
		return nil
	}
	if !(math.Abs(got-want) <= 1e-5*want) { // sums of squares have one sign, and an invocation adds 16
		return fmt.Errorf("norm is %g, want %g", got, want)
	}
	return nil
}

// Smaller implements Problem.
func (p *optimProblem) Smaller() (list []Problem) {
	add := func(change func(q *optimProblem)) {
		q := *p
		q.Sizes = slices.Clone(p.Sizes)
		change(&q)
		if !reflect.DeepEqual(&q, p) && len(q.Sizes) > 0 {
			list = append(list, &q)
		}
	}
	n := len(p.Sizes)
	add(func(q *optimProblem) { q.Sizes = q.Sizes[:(n+1)/2] })
	add(func(q *optimProblem) { q.Sizes = q.Sizes[n/2:] })
	if n > 1 {
		add(func(q *optimProblem) { q.Sizes = q.Sizes[1:] })
	}
	sizes := slices.Clone(p.Sizes)
	var each []*int
	for i := range sizes {
		each = append(each, &sizes[i])
	}
	halves(each, func() { add(func(q *optimProblem) { q.Sizes = slices.Clone(sizes) }) })
	add(func(q *optimProblem) { q.Infinite = false })
	add(func(q *optimProblem) { q.HasCopy = false })
	if !p.Infinite {
		add(func(q *optimProblem) { q.Clip, q.ClipBy = "", 0 })
	}
	add(func(q *optimProblem) { q.Arena = false })
	add(func(q *optimProblem) { q.Done = 0 })
	add(func(q *optimProblem) { q.Beta1, q.Beta2, q.Eps = 0.9, 0.999, 1e-8 })
	add(func(q *optimProblem) { q.WeightDecay = 0 })
	add(func(q *optimProblem) { q.LR = 0.01 })
	p.smaller(func(d kernelData) { add(func(q *optimProblem) { q.kernelData = d }) })
	return list
}

// drawOptim draws a problem.
func drawOptim(family, rng *rand.Rand, s Space) Problem {
	p := &optimProblem{HasCopy: family.IntN(2) == 0}
	var ok bool
	if p.Grad, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	if p.Copy = p.Grad; p.Grad == dtype.Float32 {
		p.Copy = []dtype.DType{dtype.Float16, dtype.BFloat16}[family.IntN(2)]
	}
	p.Data = drawData(family, rng)
	p.Workspace = false // it has its own
	p.Magnitude = min(p.Magnitude, call.Most(p.Grad)/p.Largest())
	if p.HasCopy && p.Copy == dtype.Float16 {
		p.Second = min(p.Second, 3000)
	}
	p.Clip = []string{"", clipNorm, clipNorm, clipNothing}[rng.IntN(4)]
	if p.Clip == clipNorm {
		p.ClipBy = tenTo(rng, -3, 0.3)
		if p.ClipBy > 0.99 && p.ClipBy < 1.01 {
			p.ClipBy = 1.5 // roundoff would decide whether the norm clips
		}
	}
	p.Infinite = p.Clip != "" && rng.IntN(12) == 0
	p.Beta1, p.Beta2, p.Eps = 0.9, 0.999, 1e-8
	if rng.IntN(3) == 0 {
		p.Beta1, p.Beta2 = []float64{0, 0.5, 0.8, 0.95}[rng.IntN(4)], []float64{0.5, 0.9, 0.95, 0.99}[rng.IntN(4)]
		p.Eps = []float64{1e-8, 1e-6, 0.1}[rng.IntN(3)]
	}
	p.WeightDecay = []float64{0, 0.01, 0.3}[rng.IntN(3)]
	p.LR = float64(float32(tenTo(rng, -5, 0)))
	p.Done = []int{0, 0, rng.IntN(10), rng.IntN(1000), rng.IntN(100000)}[rng.IntN(5)]
	p.Arena = rng.IntN(2) == 0
	for range 1 + rng.IntN(6) {
		n := Size(rng, 9000)
		if rng.IntN(3) == 0 {
			n = 4096*(1+rng.IntN(4)) + rng.IntN(9) - 4 // pieces of a workgroup
		}
		p.Sizes = append(p.Sizes, n)
	}
	if rng.IntN(16) == 0 && !s.Soft { // several pieces for each of many multiprocessors
		p.Sizes[0] = 4096*400 + rng.IntN(200000)
	}
	total := func() (cost float64) {
		for _, n := range p.Sizes {
			cost += 30 * float64(n)
		}
		return cost
	}
	var each []*int
	for i := range p.Sizes {
		each = append(each, &p.Sizes[i])
	}
	within(rng, budget(rng, s), total, each...)
	return p
}
