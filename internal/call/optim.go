package call

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/optim/ref"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Optim is a step of optim.AdamW.
type Optim struct {
	optim.Problem
	Sizes      []int // of the parameters; every other one has no weight decay
	Grad, Copy dtype.DType
	HasCopy    bool
	Arena      bool    // tensors of a kind lie in one buffer, so that there is one launch
	Clip       string  // "": MaxNorm; OptimNorm: a norm that clips nothing; OptimClip: one that clips
	ClipBy     float64 // of the norm
	Infinite   bool    // a gradient is infinite: with a norm the step is skipped
	Done       int     // steps before
	onePass
	Data
	OptimFile `json:"-"`
	ran       *optimRun
}

// OptimFile has the options of a step that only commands set.
type OptimFile struct {
	Names           []string     // of the parameters, with what is between "param" and them
	Shapes          [][]int      // of the parameters
	AllDecay        bool         // every parameter has weight decay
	NoStep, NoState bool         // no tensor has Done; none gets the norm, and how many steps were skipped
	Strict          bool         // bounds do not count the roundoff of a device's functions, which large tensors do not need, but for that of a factor of all gradients
	CopyTo          dtype.Option // the flag --copy
	Count, Each     int          // the flags --tensors and --elements
}

// optimRun is the state of the step that is computed.
type optimRun struct {
	made map[*vk.Buffer]*optim.AdamW // by the buffer of the first parameter
	clip float64                     // MaxNorm of Clip
}

// The norms of Clip.
const (
	OptimNorm = "norm"
	OptimClip = "clip"
)

// Tidy keeps what is infinite behind a norm.
func (o *Optim) Tidy() { o.Infinite = o.Infinite && o.Clip != "" }

// NewOptim returns a step whose copies share their optimizers.
func NewOptim(o Optim) *Optim {
	o.run()
	return &o
}

func (o *Optim) Validate() error {
	for _, n := range o.Sizes {
		if n <= 0 {
			return fmt.Errorf("optim: size=%d is not positive", n)
		}
	}
	return o.Problem.Validate()
}

// run returns the state of the step.
func (o *Optim) run() *optimRun {
	if o.ran == nil {
		o.ran = &optimRun{made: map[*vk.Buffer]*optim.AdamW{}}
	}
	return o.ran
}

// problem returns the constants. A norm of Clip is 1 until Adjust knows the gradients.
func (o *Optim) problem() optim.Problem {
	p := o.Problem
	if o.Clip != "" {
		p.MaxNorm = OrOne(o.run().clip)
	}
	return p
}

// A piece is a parameter: n elements of tensors, from at on.
type piece struct {
	name    string // of its tensors, after param
	n, at   int
	noDecay bool
}

// pieces returns the parameters.
func (o *Optim) pieces() (list []piece) {
	at := 0
	for i, n := range o.Sizes {
		x := piece{n: n, noDecay: !o.AllDecay && i%2 == 1}
		switch {
		case o.Arena:
			x.at = at
		case o.Names != nil:
			x.name = o.Names[i]
		default:
			x.name = fmt.Sprint(i)
		}
		at += n
		list = append(list, x)
	}
	return list
}

// Size returns the number of parameters' elements.
func (o *Optim) Size() (n int) {
	for _, size := range o.Sizes {
		n += size
	}
	return n
}

func (o *Optim) Tensors() (list []Tensor) {
	pieces, size, ofCopy := o.pieces(), OrOne(o.Magnitude), Output
	if o.Arena {
		pieces = []piece{{n: o.Size()}}
	}
	if o.Infinite { // nothing writes it
		ofCopy = Update
	}
	square := func(x float64) float64 { return 0.01 * size * size * x * x }
	for i, x := range pieces {
		shape := []int{x.n}
		if o.Shapes != nil {
			shape = o.Shapes[i]
		}
		list = append(list,
			Tensor{Name: "param" + x.name, Shape: shape, Role: Update, Scale: o.Second},
			Tensor{Name: "grad" + x.name, DType: o.Grad, Shape: shape, Scale: size, Main: true},
			Tensor{Name: "m" + x.name, Shape: shape, Role: Update, Scale: 0.1 * size},
			Tensor{Name: "v" + x.name, Shape: shape, Role: Update, Draw: square},
			Tensor{Name: "copy" + x.name, DType: o.Copy, Shape: shape, Role: ofCopy, Off: !o.HasCopy})
	}
	one, steps := []int{1}, func(x float64) float64 { return x*x + 1 }
	return append(list,
		Tensor{Name: "step", DType: dtype.Int32, Shape: one, Role: Update, Draw: steps, Most: optim.MaxStep - 1, Own: true, Off: o.NoStep},
		Tensor{Name: "norm", Shape: one, Role: Output, Off: o.NoState || o.Names != nil && o.MaxNorm == 0},
		Tensor{Name: "skipped", DType: dtype.Int32, Shape: one, Role: Output, Off: o.NoState || o.Names != nil})
}

// FLOPs returns the operations of a step: 14 of each parameter, as the formulas are written, and 3
// more for the norm.
func (o *Optim) FLOPs() float64 {
	if o.MaxNorm > 0 {
		return 17 * float64(o.Size())
	}
	return 14 * float64(o.Size())
}

// Bytes returns the least traffic of a step.
func (o *Optim) Bytes() float64 {
	each := 24 + o.Grad.Size()
	if o.HasCopy {
		each += 2
	}
	if o.MaxNorm > 0 {
		each += o.Grad.Size()
	}
	return float64(o.Size() * each)
}

// grads returns the gradients among the tensors.
func (o *Optim) grads(x Values) (list [][]float64) {
	for _, t := range o.Tensors() {
		if t.Main {
			list = append(list, x[t.Name])
		}
	}
	return list
}

// Adjust implements Call: the norm, and what is infinite.
func (o *Optim) Adjust(x Values) {
	for name := range x {
		if o.Done == 0 && (name[0] == 'm' || name[0] == 'v') {
			clear(x[name])
		}
	}
	x["step"] = []float64{float64(o.Done)}
	grads := o.grads(x)
	switch o.Clip {
	case OptimNorm:
		o.run().clip = math.Inf(1)
	case OptimClip:
		o.run().clip = max(float64(float32(ref.Norm(grads...)*o.ClipBy)), 1e-30)
	}
	if o.Infinite {
		rng := o.Rand(9)
		g := grads[rng.IntN(len(grads))]
		g[rng.IntN(len(g))] = []float64{math.NaN(), math.Inf(1), math.Inf(-1)}[rng.IntN(3)]
	}
}

// Want implements Call. With Sample it has as many elements, at equal distances. Sums of squares have
// one sign, and an invocation adds 16: the norm has a few roundoffs. If it is not finite, it may be
// infinite or NaN, and the step is skipped.
func (o *Optim) Want(x Values, _ kit.Pass) Outputs {
	p, norm, t, every := o.problem(), ref.Norm(o.grads(x)...), o.Done+1, 1
	if step := x["step"]; step != nil {
		t = int(step[0]) + 1
	}
	if o.Sample > 0 {
		every = max(o.Size()/o.Sample, 1)
	}
	skip := p.MaxNorm > 0 && (math.IsNaN(norm) || math.IsInf(norm, 0))
	list := Outputs{"step": {Want: []float64{float64(t)}}, "skipped": {Want: []float64{0}}, "norm": {Want: []float64{norm}, Bound: 1e-5 * norm}}
	switch {
	case skip:
		list = Outputs{"step": {Want: []float64{float64(t - 1)}}, "skipped": {Want: []float64{1}}, "norm": {Any: true}}
	case p.MaxNorm == 0:
		list["norm"] = Wanted{Want: []float64{0}}
	case o.Strict:
		list["norm"] = Wanted{Want: []float64{norm}, Bound: 1e-6 * norm}
	}
	for _, of := range o.pieces() {
		var at []int
		for i := of.at; i < of.at+of.n; i += every {
			at = append(at, i)
		}
		pick := func(name string) (y []float64) {
			for _, i := range at {
				y = append(y, x[name+of.name][i])
			}
			return y
		}
		before, grad, scale := ref.Param{Param: pick("param"), M: pick("m"), V: pick("v"), NoDecay: of.noDecay}, pick("grad"), ref.Scale(p, norm)
		want, b := before, ref.Bounds{}
		if !skip {
			want = ref.Step(p, before, grad, scale, t)
			plain := ref.PlainStep(p, before, grad, scale, t)
			if o.Strict && scale == 1 {
				before = ref.Param{}
			}
			b = ref.NewBounds(p, before, grad, scale, t, want, plain, o.Copy)
		}
		add := func(name string, want []float64, bound float64) {
			w := list[name+of.name]
			if w.Want, w.Bound = append(w.Want, want...), max(w.Bound, bound); every > 1 {
				w.Sample = append(w.Sample, at...)
			}
			list[name+of.name] = w
		}
		add("param", want.Param, b.Param)
		add("m", want.M, b.M)
		add("v", want.V, b.V)
		if copied := x["copy"+of.name]; skip && copied != nil {
			add("copy", pick("copy"), 0)
		} else {
			add("copy", ref.Copy(want.Param, o.Copy), b.Copy)
		}
	}
	return list
}

func (o *Optim) Host() Host { return Host{Choose: o.choose, Bind: o.bind} }

func (o *Optim) choose(caps *vk.Caps, _ kit.Pass) (kit.Plan, error) {
	formats := []dtype.DType{o.Grad} // which a Problem does not have
	if o.HasCopy {
		formats = append(formats, o.Copy)
	}
	plan, err := optim.Choose(caps, o.problem())
	return plan, cmp.Or(err, argument.Storage("optim", caps, formats...))
}

// bind is Bind. The first recording with a set of tensors makes their optimizer.
func (o *Optim) bind(t map[string]vk.Tensor, _ *vk.Buffer, _ kit.Pass) Recording {
	var params []optim.Param
	for i, of := range o.pieces() {
		p := optim.Param{Name: fmt.Sprint(i), NoDecay: of.noDecay}
		for name, to := range map[string]*vk.Tensor{"param": &p.Param, "grad": &p.Grad, "m": &p.M, "v": &p.V, "copy": &p.Copy} {
			if *to = t[name+of.name]; o.Arena && !to.IsZero() {
				to.Shape, to.Strides = []int{of.n}, []int{1}
				to.Offset += of.at
			}
		}
		params = append(params, p)
	}
	step, norm, skipped := t["step"], t["norm"], t["skipped"]
	return func(c *vk.Cmd) error {
		a, err := o.optimizer(c.Device(), params)
		if err != nil {
			return err
		}
		move := func(to, from vk.Tensor) {
			if !to.IsZero() && !from.IsZero() {
				c.Copy(to.Buffer, 4*int64(to.Offset), from.Buffer, 4*int64(from.Offset), 4)
			}
		}
		move(a.Count(), step)
		if err := a.Step(c); err != nil {
			return err
		}
		move(step, a.Count())
		move(norm, a.Norm())
		move(skipped, a.Skipped())
		return nil
	}
}

// optimizer returns the optimizer of a set of tensors.
func (o *Optim) optimizer(d *vk.Device, params []optim.Param) (a *optim.AdamW, err error) {
	ctx, made := context.Background(), o.run().made
	if a = made[params[0].Param.Buffer]; a != nil {
		return a, nil
	}
	if a, err = optim.New(ctx, d, params, o.problem()); err != nil {
		return nil, err
	}
	made[params[0].Param.Buffer] = a
	return a, a.SetStep(ctx, o.Done)
}

// Warning says that a step was skipped.
func (o *Optim) Warning(ctx context.Context) (string, error) {
	for _, a := range o.run().made {
		var b [4]byte
		if err := a.Skipped().DownloadRaw(ctx, b[:]); err != nil || b != [4]byte{} {
			return "the step was skipped, and all is as it was: a gradient is not finite, or the norm of all is 1.8e19 or more", err
		}
	}
	return "", nil
}

// Close frees the optimizers that recordings made.
func (o *Optim) Close() {
	for _, a := range o.run().made {
		a.Close()
	}
	clear(o.run().made)
}

// drawOptim draws steps of AdamW.
func drawOptim(family, rng *rand.Rand, s Space) Call {
	p := &Optim{HasCopy: family.IntN(2) == 0}
	var ok bool
	if p.Grad, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	if p.Copy = p.Grad; p.Grad == dtype.Float32 {
		p.Copy = []dtype.DType{dtype.Float16, dtype.BFloat16}[family.IntN(2)]
	}
	p.Data = DrawData(family, rng)
	p.Workspace = false // it has its own
	p.Magnitude = min(p.Magnitude, Most(p.Grad)/p.Largest())
	if p.HasCopy && p.Copy == dtype.Float16 {
		p.Second = min(p.Second, 3000)
	}
	p.Clip = []string{"", OptimClip, OptimClip, OptimNorm}[rng.IntN(4)]
	if p.Clip == OptimClip {
		p.ClipBy = TenTo(rng, -3, 0.3)
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
	p.LR = float64(float32(TenTo(rng, -5, 0)))
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
	Within(rng, s.Budget(rng), total, each...)
	return p
}
