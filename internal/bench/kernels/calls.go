package kernels

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// calls are the calls of a kernel that package call describes, for the command line. It makes Flags.
type calls[C call.Call] struct {
	name     string
	flags    []flag
	base     func(cpu bool) C                           // the call of no flags
	file     func(h Header, c C) error                  // sets sizes and formats from the tensors of a file
	suite    func(small bool) []C                       // the training workload
	describe func(c C) string                           // for Op.Describe
	keys     func(c C) []bench.Key                      // for Op.Keys; fieldKeys
	check    func(c C) error                            // of flags, beside what Validate checks; nil: none
	path     func(c C, impl string, p bench.Pass) error // sets the fields of a path; nil: Impl, if there is one
	sample   func(c C) int                              // how many rows the reference has, if there are more; nil: all
	// tune returns what is tuned; nil: there are no configurations.
	tune func(caps *vk.Caps, op tunedOp[C], p bench.Pass) ([]bench.Tunable, error)
}

// A flag is a flag of the field of a call with its name.
type flag struct {
	name, usage string
	size        bool       // command run has it from the file
	field       string     // of another name
	keeps       []mlp.Keep // its values
}

// of returns the field of a call.
func (f *flag) of(c call.Call) reflect.Value { return call.Field(c, cmp.Or(f.field, f.name)) }

// callFlags implements Flags.
type callFlags[C call.Call] struct {
	*calls[C]
	given C // the values of flags
	set   *pflag.FlagSet
}

// New returns the flags of a command.
func (k *calls[C]) New() Flags { return &callFlags[C]{calls: k, given: k.base(false)} }

// Add implements Flags. Defaults that depend on the device are in usage texts.
func (f *callFlags[C]) Add(set *pflag.FlagSet, sizes bool) {
	f.set = set
	for _, x := range f.flags {
		if x.size && !sizes {
			continue
		}
		field, cpu := x.of(f.given), x.of(f.base(true))
		if !field.Equal(cpu) {
			field.SetZero()
		}
		switch to := field.Addr().Interface().(type) {
		case *bool:
			set.BoolVar(to, x.name, *to, x.usage)
		case *int:
			set.IntVar(to, x.name, *to, x.usage)
		case *float64:
			set.Float64Var(to, x.name, *to, x.usage)
		case *string:
			set.StringVar(to, x.name, *to, x.usage)
		case *dtype.DType:
			DTypeVar(set, to, x.name, x.usage)
		case *dtype.Option:
			set.Var(Value[dtype.Option]{to, parseOption, dtypeKind}, x.name, x.usage)
		case **norm.Config:
			set.Var(Value[*norm.Config]{to, parseNormConfig, "CONFIG"}, x.name, x.usage)
		case *engine.Activation:
			set.Var(Value[engine.Activation]{to, problem.ParseActivation, "NAME"}, x.name, x.usage)
		case *mlp.Keep:
			keepVar(set, to, x.keeps, x.usage)
		default:
			panic("kernels: no flag has the type of " + x.name)
		}
	}
}

// FromFlags implements Flags.
func (f *callFlags[C]) FromFlags(cpu bool) (bench.Op, error) {
	c := f.base(cpu)
	f.change(c, true)
	return f.valid(calledOp[C]{f.calls, c, true})
}

// change sets the fields of a call whose flags are given, those of sizes too or not.
func (f *callFlags[C]) change(c C, sizes bool) {
	for _, x := range f.flags {
		if f.set != nil && f.set.Changed(x.name) && (sizes || !x.size) {
			x.of(c).Set(x.of(f.given))
		}
	}
}

// FromFile implements Flags.
func (f *callFlags[C]) FromFile(in File) (bench.Op, error) {
	c := call.Copy(f.given).(C)
	for _, x := range f.flags {
		if x.size {
			x.of(c).SetZero()
		}
	}
	if err := f.file(in.Tensors(), c); err != nil {
		return nil, err
	}
	return f.valid(calledOp[C]{f.calls, c, false})
}

// valid returns a call as a bench.Op, or what is wrong with it.
func (k *calls[C]) valid(o calledOp[C]) (bench.Op, error) {
	if k.check != nil {
		if err := k.check(o.c); err != nil {
			return nil, err
		}
	}
	return o.op(), o.c.Validate()
}

// Suite implements Flags. Flags that are not sizes hold for its cases.
func (f *callFlags[C]) Suite(small bool) (list []bench.Op) {
	for _, c := range f.suite(small) {
		f.change(c, false)
		list = append(list, calledOp[C]{f.calls, c, true}.op())
	}
	return list
}

// into sets the fields of a call that have the names of a tensor's format and axes. The first tensor
// with an axis says its size.
func (h Header) into(c call.Call, tensor, format string, axes ...string) error {
	shape, t, err := h.Floats(tensor, axes...)
	if err != nil {
		return err
	}
	if to := call.Field(c, format); to.IsValid() {
		to.Set(reflect.ValueOf(t))
	}
	for i, axis := range axes {
		if to := call.Field(c, axis); to.IsValid() && to.IsZero() {
			to.SetInt(int64(shape[i]))
		}
	}
	return nil
}

// fieldKeys returns the fields of a call as keys.
func fieldKeys(c call.Call, names ...string) (list []bench.Key) {
	for _, name := range names {
		x := call.Field(c, name).Interface()
		if t, ok := x.(fmt.Stringer); ok {
			x = t.String()
		}
		list = append(list, bench.Key{Name: name, Value: x})
	}
	return list
}

// A calledOp is a call as a bench.Op.
type calledOp[C call.Call] struct {
	of    *calls[C]
	c     C
	lines bool // rows lie at whole lines of memory if call.Tensor.Lines says so
}

// op returns the call as a bench.Tuner if there are configurations.
func (o calledOp[C]) op() bench.Op {
	if o.of.tune != nil {
		return tunedOp[C]{o}
	}
	return o
}

// Name implements bench.Op.
func (o calledOp[C]) Name() string { return o.of.name }

// Describe implements bench.Op.
func (o calledOp[C]) Describe() string { return o.of.describe(o.c) }

// Keys implements bench.Op.
func (o calledOp[C]) Keys() []bench.Key { return o.of.keys(o.c) }

// Cost implements bench.Op.
func (o calledOp[C]) Cost(p bench.Pass) (flops, bytes float64) { return cost(any(o.c).(costs), p) }

// Close frees what Record made.
func (o calledOp[C]) Close() {
	if c, ok := any(o.c).(interface{ Close() }); ok {
		c.Close()
	}
}

// Note returns the call's warning of what was computed.
func (o calledOp[C]) Note(ctx context.Context) (string, error) {
	if c, ok := any(o.c).(interface {
		Warning(ctx context.Context) (string, error)
	}); ok {
		return c.Warning(ctx)
	}
	return "", nil
}

// Tensors implements bench.Op.
func (o calledOp[C]) Tensors() (list []bench.OpTensor) {
	for _, t := range o.c.Tensors() {
		if t.Off {
			continue
		}
		x := bench.OpTensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Role: t.Role, Most: t.Most}
		if stride := o.stride(&t); stride > 0 {
			x.Shape = append(slices.Clone(t.Shape[:len(t.Shape)-1]), stride)
		}
		if t.Draw != nil {
			x.Draw = func(x float32) float32 { return float32(t.Draw(float64(x))) }
		} else if scale := float32(call.OrOne(t.Scale)); scale != 1 {
			x.Draw = func(x float32) float32 { return scale * x }
		}
		list = append(list, x)
	}
	return list
}

// stride returns the elements from row to row of a tensor whose rows lie apart; 0: they do not.
func (o calledOp[C]) stride(t *call.Tensor) int {
	if cols := t.Shape[len(t.Shape)-1]; o.lines && t.Lines && engine.RowStride(cols) > cols {
		return engine.RowStride(cols)
	}
	return 0
}

// on returns the call on a path.
func (o calledOp[C]) on(impl string, p bench.Pass) (C, error) {
	c := call.Copy(o.c).(C)
	if o.of.path != nil {
		return c, o.of.path(c, impl, p)
	}
	if field := call.Field(c, "impl"); field.IsValid() {
		field.SetString(impl)
	}
	return c, nil
}

// Choose implements bench.Op.
func (o calledOp[C]) Choose(caps *vk.Caps, impl string, p bench.Pass) (kit.Plan, error) {
	c, err := o.on(impl, p)
	if err != nil {
		return nil, err
	}
	return c.Choose(caps, p.Kit())
}

// Record implements bench.Op.
func (o calledOp[C]) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p bench.Pass) error {
	of, err := o.on(impl, p)
	if err != nil {
		return err
	}
	t = maps.Clone(t)
	for _, x := range of.Tensors() {
		if on, ok := t[x.Name]; ok && o.stride(&x) > 0 {
			on.Shape = x.Shape
			t[x.Name] = on
		}
	}
	return of.Record(c, t, workspace, p.Kit())
}

// Reference implements bench.Op.
func (o calledOp[C]) Reference(t map[string][]float32, p bench.Pass) (bench.Reference, error) {
	x, c := call.Values{}, call.Copy(o.c).(C)
	for name, values := range t {
		x[name] = wide(values)
	}
	if o.of.sample != nil {
		c.Given().Sample = o.of.sample(c)
	}
	want := c.Want(x, p.Kit())
	var list bench.Expectations
	for _, t := range c.Tensors() {
		w, ok := want.Of(t.Name)
		if op := (bench.OpTensor{Role: t.Role}); !ok || t.Off || !op.Written(p) {
			continue
		}
		if w.Bounds == nil {
			list = append(list, o.expected(&t, w))
			continue
		}
		of := map[float64]int{} // the place in the list, by limit
		for i, want := range w.Want {
			at, limit := i, w.Bounds[i%len(w.Bounds)]
			if w.Sample != nil {
				at = w.Sample[i]
			}
			if _, ok := of[limit]; !ok {
				of[limit] = len(list)
				list = append(list, bench.Expected{Name: t.Name, Limit: limit})
			}
			e := &list[of[limit]]
			e.At, e.Want = append(e.At, at), append(e.Want, want)
		}
	}
	return list, nil
}

// expected returns an output of one limit, in rows that may lie apart.
func (o calledOp[C]) expected(t *call.Tensor, w call.Wanted) bench.Expected {
	e := bench.Expected{Name: t.Name, Want: w.Want, Limit: w.Bound, At: w.Sample}
	if e.Stride = o.stride(t); e.Stride == 0 {
		return e
	}
	e.At, e.Columns = make([]int, len(w.Want)), t.Shape[len(t.Shape)-1]
	for i := range e.At {
		at := i
		if w.Sample != nil {
			at = w.Sample[i]
		}
		e.At[i] = at/e.Columns*e.Stride + at%e.Columns
	}
	return e
}

// A tunedOp is a calledOp with configurations: a bench.Tuner.
type tunedOp[C call.Call] struct{ calledOp[C] }

// with returns the op of a copy of the call.
func (o calledOp[C]) with(change func(c C)) bench.Op {
	c := call.Copy(o.c).(C)
	change(c)
	return calledOp[C]{o.of, c, o.lines}.op()
}

// Use implements bench.Tuner.
func (o tunedOp[C]) Use(tuning *kit.Tuning) bench.Op {
	return o.with(func(c C) { c.Given().Tuning = tuning })
}

// Tunables implements bench.Tuner.
func (o tunedOp[C]) Tunables(caps *vk.Caps, p bench.Pass) ([]bench.Tunable, error) {
	return o.of.tune(caps, o, p)
}
