package kernels

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/pipelines/optim/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

const optimFormulas = `
    norm  = sqrt(sum of grad² over all tensors)
    g     = grad * min(1, max_norm / norm)            with --max-norm
    m     = beta1 * m + (1 - beta1) * g
    v     = beta2 * v + (1 - beta2) * g²
    param = param * (1 - lr * weight_decay) - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    copy  = param, rounded                            with --copy
`

func optimizer() Kernel {
	return Kernel{
		Name: "optim", Title: "a step of AdamW", Impls: []string{"auto"},
		Fixed: "its pieces of 4096 elements are the same on every device",
		Bench: Help{
			Long: `Measures a step of AdamW for many tensors in one buffer of each kind,
` + optimFormulas + `
after checking a sample of it against a float64 reference. The rate is that of memory
traffic: 28 bytes for each parameter with float32 gradients, 4 more for the norm, 2 more
for a copy.`,
			Example: `  flashvk bench optim
  flashvk bench optim --max-norm 1 --copy bfloat16
  flashvk bench optim --suite training --peer torch="python3 tools/peers/torch_train.py"`,
		},
		Run: Help{
			Long: `Computes a step of AdamW,
` + optimFormulas + `
The input file holds for each NAME the tensors
    param.NAME, m.NAME, v.NAME  F32, of one shape
    grad.NAME                   F32, F16 or BF16
or param, m, v and grad without NAME. It may also hold
    step  (1), I32: the number of steps so far; t is one more. If it is missing, t is 1
The output file gets param.NAME, m.NAME, v.NAME, step if it was there, with --copy
copy.NAME, and with --max-norm
    norm  (1), F32: that of all gradients
With --max-norm the step is skipped, with a warning, if a gradient is not finite, or if the
norm is 1.8e19 or more: float32 does not hold its square. Everything stays as it was.`,
			Example: `  flashvk run optim --in model.safetensors --out model.safetensors --lr 1e-4 --max-norm 1 --copy bfloat16`,
		},
		Sweep: "--tensors 1..64x4",
		New:   func() Flags { return &optimFlags{hyper: optim.Default(), tensors: 60} },
	}
}

// optimFlags are the flags of both commands.
type optimFlags struct {
	hyper             optim.Problem
	copyTo, grad      dtype.DType
	tensors, elements int
	set               *pflag.FlagSet
}

// Add implements Flags.
func (o *optimFlags) Add(f *pflag.FlagSet, sizes bool) {
	o.set = f
	f.Float64Var(&o.hyper.LR, "lr", o.hyper.LR, "learning rate")
	f.Float64Var(&o.hyper.Beta1, "beta1", o.hyper.Beta1, "decay rate of the first moment")
	f.Float64Var(&o.hyper.Beta2, "beta2", o.hyper.Beta2, "decay rate of the second moment")
	f.Float64Var(&o.hyper.Eps, "eps", o.hyper.Eps, "added to the root of the second moment")
	f.Float64Var(&o.hyper.WeightDecay, "weight-decay", o.hyper.WeightDecay, "decoupled weight decay, times lr")
	f.Float64Var(&o.hyper.MaxNorm, "max-norm", o.hyper.MaxNorm, "clip the gradients to this norm; 0 is no clipping, inf only looks for gradients that are not finite")
	DTypeVar(f, &o.copyTo, "copy", "also write the parameters in this format: float16 or bfloat16")
	if !sizes {
		return
	}
	f.IntVar(&o.tensors, "tensors", o.tensors, "parameter tensors")
	f.IntVar(&o.elements, "elements", 0, "elements of each (default 698880 on a GPU, 5000 on a CPU device)")
	DTypeVar(f, &o.grad, "grad-dtype", "format of the gradients: float32 (default), float16 or bfloat16")
}

// maxTensors bounds --tensors, since the host describes each tensor.
const maxTensors = 100_000

// FromFlags implements Flags.
func (o *optimFlags) FromFlags(cpu bool) (bench.Op, error) {
	op := &optimOp{hyper: o.hyper, grad: o.grad, copyTo: o.copyTo, flat: true, done: 9}
	n := 512 * 1365
	if cpu {
		n = 5000
	}
	if o.set.Changed("elements") {
		n = o.elements
	}
	if o.tensors <= 0 || o.tensors > maxTensors {
		return nil, fmt.Errorf("optim: tensors=%d is not in 1..%d", o.tensors, maxTensors)
	}
	if n <= 0 || n > math.MaxInt32 {
		return nil, fmt.Errorf("optim: elements=%d is not in 1..%d", n, math.MaxInt32)
	}
	for range o.tensors {
		op.shapes = append(op.shapes, []int{n})
	}
	if o.grad != dtype.Float32 && o.copyTo != dtype.Float32 && o.grad != o.copyTo {
		return nil, fmt.Errorf("optim: --copy %v and --grad-dtype %v: formats of 16 bits are the same", o.copyTo, o.grad)
	}
	return op, op.check(o.set)
}

// Suite implements Flags with the 42 million parameters of torch_train.py's optimizer.
func (o *optimFlags) Suite(small bool) []bench.Op {
	clip := optim.Default()
	clip.MaxNorm = 1
	list := []*optimOp{
		{hyper: optim.Default()},
		{hyper: optim.Default(), copyTo: dtype.BFloat16},
		{hyper: clip, copyTo: dtype.BFloat16, grad: dtype.BFloat16},
	}
	var ops []bench.Op
	for _, op := range list {
		op.done, op.flat = 9, true
		n := 512 * 1365
		if small {
			n = 1000
		}
		for range 60 {
			op.shapes = append(op.shapes, []int{n})
		}
		ops = append(ops, op)
	}
	return ops
}

// FromFile implements Flags.
func (o *optimFlags) FromFile(in File) (bench.Op, error) {
	h := Header(in.Tensors())
	op := &optimOp{hyper: o.hyper, copyTo: o.copyTo}
	for _, t := range h {
		name, found := strings.CutPrefix(t.Name, "param")
		if !found || name != "" && name[0] != '.' {
			continue
		}
		if t.DType != bench.FileDType(dtype.Float32) {
			return nil, fmt.Errorf("tensor %q: dtype %s is not F32", t.Name, t.DType)
		}
		format, err := h.Float("grad" + name)
		if err != nil {
			return nil, err
		}
		if len(op.names) > 0 && format != op.grad {
			return nil, fmt.Errorf("tensor %q: dtype %s, but %s of %q", "grad"+name, bench.FileDType(format), bench.FileDType(op.grad), "grad"+op.names[0])
		}
		if slices.Contains(t.Shape, 0) {
			return nil, fmt.Errorf("tensor %q: shape %v is empty", t.Name, t.Shape)
		}
		op.names, op.shapes, op.grad = append(op.names, name), append(op.shapes, t.Shape), format
	}
	if len(op.names) == 0 {
		return nil, errors.New(`there is no tensor "param" or "param.NAME"`)
	}
	_, op.step = h.Tensor("step")
	return op, op.check(o.set)
}

// An optimOp is a step of package optim. If it is flat, one tensor without a name holds all
// parameters, and so for their gradients and moments.
type optimOp struct {
	hyper        optim.Problem
	grad, copyTo dtype.DType // Float32 is no copy
	names        []string    // with a dot before each
	shapes       [][]int
	flat, step   bool
	done         int // earlier steps, if no tensor has their number
	made         map[*vk.Buffer]*optim.AdamW
}

func (o *optimOp) check(set *pflag.FlagSet) error {
	if set.Changed("copy") && o.copyTo == dtype.Float32 {
		return errors.New("optim: --copy float32 is not a format of 16 bits")
	}
	return o.hyper.Validate()
}

// Close frees the optimizers that Record made.
func (o *optimOp) Close() {
	for _, a := range o.made {
		a.Close()
	}
	o.made = nil
}

// Note says that a step was skipped.
func (o *optimOp) Note(ctx context.Context) (string, error) {
	for _, a := range o.made {
		raw := make([]byte, 4)
		if err := a.Skipped().DownloadRaw(ctx, raw); err != nil {
			return "", err
		}
		if binary.LittleEndian.Uint32(raw) > 0 {
			return "the step was skipped, and all is as it was: a gradient is not finite, or the norm of all is 1.8e19 or more", nil
		}
	}
	return "", nil
}

// size returns the parameters.
func (o *optimOp) size() int {
	n := 0
	for _, s := range o.shapes {
		one := 1
		for _, d := range s {
			one *= d
		}
		n += one
	}
	return n
}

func (o *optimOp) hasCopy() bool { return o.copyTo != dtype.Float32 }

// Name implements bench.Op.
func (o *optimOp) Name() string { return "optim" }

// Describe implements bench.Op.
func (o *optimOp) Describe() string {
	s := fmt.Sprintf("float32: parameters %d, tensors %d, gradients %v", o.size(), len(o.shapes), o.grad)
	if o.hasCopy() {
		s += fmt.Sprintf(", copy %v", o.copyTo)
	}
	if o.hyper.MaxNorm > 0 {
		s += fmt.Sprintf(", max-norm %g", o.hyper.MaxNorm)
	}
	return s
}

// Keys implements bench.Op.
func (o *optimOp) Keys() []bench.Key {
	copyTo := "none"
	if o.hasCopy() {
		copyTo = o.copyTo.String()
	}
	return []bench.Key{
		{Name: "parameters", Value: o.size()}, {Name: "tensors", Value: len(o.shapes)}, {Name: "grad_dtype", Value: o.grad.String()},
		{Name: "copy", Value: copyTo}, {Name: "max_norm", Value: fmt.Sprint(o.hyper.MaxNorm)}, {Name: "lr", Value: o.hyper.LR},
		{Name: "beta1", Value: o.hyper.Beta1}, {Name: "beta2", Value: o.hyper.Beta2}, {Name: "eps", Value: o.hyper.Eps}, {Name: "weight_decay", Value: o.hyper.WeightDecay},
	}
}

// Cost implements bench.Op. Each parameter takes 14 operations, as the formulas are written, and 3
// more for the norm.
func (o *optimOp) Cost(bench.Pass) (flops, bytes float64) {
	n := float64(o.size())
	flops, bytes = 14*n, n*float64(24+o.grad.Size())
	if o.hasCopy() {
		bytes += 2 * n
	}
	if o.hyper.MaxNorm > 0 {
		flops, bytes = flops+3*n, bytes+n*float64(o.grad.Size())
	}
	return flops, bytes
}

// Tensors implements bench.Op.
func (o *optimOp) Tensors() (list []bench.OpTensor) {
	names, shapes := o.names, o.shapes
	if o.flat {
		names, shapes = []string{""}, [][]int{{o.size()}}
	}
	small := func(x float32) float32 { return x / 100 }
	square := func(x float32) float32 { return x * x / 100 }
	for i, name := range names {
		list = append(list,
			bench.OpTensor{Name: "param" + name, Shape: shapes[i], Role: bench.Update},
			bench.OpTensor{Name: "grad" + name, DType: o.grad, Shape: shapes[i], Draw: small},
			bench.OpTensor{Name: "m" + name, Shape: shapes[i], Role: bench.Update, Draw: small},
			bench.OpTensor{Name: "v" + name, Shape: shapes[i], Role: bench.Update, Draw: square})
		if o.hasCopy() {
			list = append(list, bench.OpTensor{Name: "copy" + name, DType: o.copyTo, Shape: shapes[i], Role: bench.Output})
		}
	}
	if o.step {
		list = append(list, bench.OpTensor{Name: "step", DType: dtype.Int32, Shape: []int{1}, Role: bench.Update, Draw: func(x float32) float32 { return x*x + 1 }, Most: optim.MaxStep - 1})
	}
	if o.hyper.MaxNorm > 0 && !o.flat {
		list = append(list, bench.OpTensor{Name: "norm", Shape: []int{1}, Role: bench.Output})
	}
	return list
}

// Choose implements bench.Op.
func (o *optimOp) Choose(caps *vk.Caps, _ string, _ bench.Pass) (kit.Plan, error) {
	return optim.Choose(caps, o.hyper)
}

// params returns the parameters of a set of tensors.
func (o *optimOp) params(t map[string]vk.Tensor) (list []optim.Param) {
	if !o.flat {
		for _, name := range o.names {
			list = append(list, optim.Param{Name: strings.TrimPrefix(name, "."), Tensors: optim.Tensors{Param: t["param"+name], Grad: t["grad"+name], M: t["m"+name], V: t["v"+name], Copy: t["copy"+name]}})
		}
		return list
	}
	at := 0
	for i, shape := range o.shapes {
		piece := func(name string) vk.Tensor {
			x := t[name]
			if !x.IsZero() {
				x.Shape, x.Offset = shape, at
			}
			return x
		}
		list = append(list, optim.Param{Name: fmt.Sprint(i), Tensors: optim.Tensors{Param: piece("param"), Grad: piece("grad"), M: piece("m"), V: piece("v"), Copy: piece("copy")}})
		at += shape[0]
	}
	return list
}

// Record implements bench.Op. The first call with a set of tensors makes their optimizer.
func (o *optimOp) Record(c *vk.Cmd, t map[string]vk.Tensor, _ *vk.Buffer, _ string, _ bench.Pass) error {
	params := o.params(t)
	a := o.made[params[0].Param.Buffer]
	if a == nil {
		ctx := context.Background()
		var err error
		if a, err = optim.New(ctx, c.Device(), params, o.hyper); err != nil {
			return err
		}
		if o.made == nil {
			o.made = map[*vk.Buffer]*optim.AdamW{}
		}
		o.made[params[0].Param.Buffer] = a
		if err := a.SetStep(ctx, o.done); err != nil {
			return err
		}
	}
	copyWord := func(to, from vk.Tensor) { c.Copy(to.Buffer, 4*int64(to.Offset), from.Buffer, 4*int64(from.Offset), 4) }
	if o.step {
		copyWord(a.Count(), t["step"])
	}
	if err := a.Step(c); err != nil {
		return err
	}
	if norm := t["norm"]; !norm.IsZero() || o.step {
		if o.step {
			copyWord(t["step"], a.Count())
		}
		if !norm.IsZero() {
			copyWord(norm, a.Norm())
		}
	}
	return nil
}

// checkedElements elements of each tensor are compared, at equal distances.
const checkedElements = 1 << 18

// Reference implements bench.Op.
func (o *optimOp) Reference(t map[string][]float32, _ bench.Pass) (bench.Reference, error) {
	var list bench.Expectations
	names := o.names
	if o.flat {
		names = []string{""}
	}
	step, norm := o.done+1, 0.0
	if o.step {
		step = int(t["step"][0]) + 1
		list = append(list, bench.Expected{Name: "step", Want: []float64{float64(step)}})
	}
	if o.hyper.MaxNorm > 0 {
		for _, name := range names {
			for _, x := range t["grad"+name] {
				norm += float64(x) * float64(x)
			}
		}
		norm = math.Sqrt(norm)
		if !o.flat {
			list = append(list, bench.Expected{Name: "norm", Want: []float64{norm}, Limit: 1e-6 * norm})
		}
	}
	scale := ref.Scale(o.hyper, norm)
	for _, name := range names {
		n := len(t["param"+name])
		var at []int
		for i := 0; i < n; i += max(n/checkedElements, 1) {
			at = append(at, i)
		}
		pick := func(what string) []float64 {
			x := make([]float64, len(at))
			for i, j := range at {
				x[i] = float64(t[what+name][j])
			}
			return x
		}
		p, grad := ref.Param{Param: pick("param"), M: pick("m"), V: pick("v")}, pick("grad")
		want, plain := ref.Step(o.hyper, p, grad, scale, step), ref.PlainStep(o.hyper, p, grad, scale, step)
		for _, x := range []struct {
			name        string
			want, plain []float64
		}{{"param", want.Param, plain.Param}, {"m", want.M, plain.M}, {"v", want.V, plain.V}} {
			list = append(list, bench.Expected{Name: x.name + name, At: at, Want: x.want, Limit: tolerance.Plain(dtype.Float32, x.want, x.plain, 0)})
		}
		if !o.hasCopy() {
			continue
		}
		rounded := make([]float64, len(at))
		for i, x := range plain.Param {
			rounded[i] = float64(o.copyTo.Round(float32(x)))
		}
		list = append(list, bench.Expected{Name: "copy" + name, At: at, Want: want.Param, Limit: tolerance.Plain(o.copyTo, want.Param, rounded, 0)})
	}
	return list, nil
}
