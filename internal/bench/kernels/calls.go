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
	// tensors completes the list of tensors of a call; nil: it is complete.
	tensors func(c C, list []call.Tensor)
}

// A flag is a flag of the field of a call with its name.
type flag struct {
	name, usage string
	size        bool                     // command run has it from the file
	file        bool                     // only command run has it
	field       string                   // of another name
	value       func(to any) pflag.Value // of a pointer to the field; nil: the usual one of its type
	unsaid      string                   // the value without one
}

// parsed returns the value of a flag of type T.
func parsed[T any](parse func(string) (T, error), kind string) func(to any) pflag.Value {
	return func(to any) pflag.Value { return Value[T]{to.(*T), parse, kind} }
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
		if x.size && !sizes || x.file && sizes {
			continue
		}
		field, unsaid, text := x.of(f.given), x.unsaid, ""
		if x.value == nil {
			if !field.Equal(x.of(f.base(true))) {
				field.SetZero()
			}
			if !field.IsZero() {
				text = fmt.Sprint(field)
			}
		}
		var value pflag.Value
		switch to := field.Addr().Interface().(type) {
		case *bool:
			value, unsaid = defaulted{Value[bool]{to, parseBool, "bool"}, text}, "true"
		case *int:
			value = defaulted{Value[int]{to, ParseInt, intKind}, text}
		case *float64:
			value = defaulted{Value[float64]{to, ParseFloat, "F"}, text}
		case *dtype.DType:
			value = Value[dtype.DType]{to, ParseDType, dtypeKind}
		case *dtype.Option:
			value = Value[dtype.Option]{to, parseOption, dtypeKind}
		case *string:
			value = Value[string]{to, func(text string) (string, error) { return text, nil }, "string"}
		case **norm.Config:
			value = Value[*norm.Config]{to, parseNormConfig, "CONFIG"}
		case *engine.Activation:
			value = Value[engine.Activation]{to, problem.ParseActivation, "NAME"}
		}
		if x.value != nil {
			value = x.value(field.Addr().Interface())
		}
		set.Var(value, x.name, x.usage)
		set.Lookup(x.name).NoOptDefVal = unsaid
	}
}

// FromFlags implements Flags.
func (f *callFlags[C]) FromFlags(cpu bool) (bench.Op, error) {
	c := f.base(cpu)
	f.change(c, true)
	return f.valid(c, true)
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
	return f.valid(c, false)
}

// valid returns a call as a bench.Op, or what is wrong with it.
func (k *calls[C]) valid(c C, lines bool) (bench.Op, error) {
	if k.check != nil {
		if err := k.check(c); err != nil {
			return nil, err
		}
	}
	return k.newOp(c, lines), c.Validate()
}

func (k *calls[C]) newOp(c C, lines bool) bench.Op {
	return calledOp[C]{k, c, lines, map[string]vk.Tensor{}}.op()
}

// Suite implements Flags. Flags that are not sizes hold for its cases.
func (f *callFlags[C]) Suite(small bool) (list []bench.Op) {
	for _, c := range f.suite(small) {
		f.change(c, false)
		list = append(list, f.newOp(c, true))
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
	of     *calls[C]
	c      C
	lines  bool                 // rows lie at whole lines of memory if call.Tensor.Lines says so
	states map[string]vk.Tensor // what call.Tensor.State says, by name; copies of the op share them
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
	for name, t := range o.states {
		t.Close()
		delete(o.states, name)
	}
	if c, ok := any(o.c).(interface{ Close() }); ok {
		c.Close()
	}
}

// Of returns the call.
func (o calledOp[C]) Of() any { return o.c }

// Note implements bench.Noter.
func (o calledOp[C]) Note(caps *vk.Caps, impl string, p bench.Pass, list []bench.DispatchProfile) error {
	c, ok := any(o.c).(interface {
		Note(plan kit.Plan, list []bench.DispatchProfile)
	})
	if !ok {
		return nil
	}
	if p == bench.Both {
		p = bench.Forward
	}
	plan, err := o.Choose(caps, impl, p)
	if err == nil {
		c.Note(plan, list)
	}
	return err
}

// Tensors implements bench.Op.
func (o calledOp[C]) Tensors() (list []call.Tensor) {
	for _, t := range o.c.Tensors() {
		if t.Off || t.State {
			continue
		}
		if stride := o.stride(&t); stride > 0 {
			t.Shape = append(slices.Clone(t.Shape[:len(t.Shape)-1]), stride)
		}
		t.Name = cmp.Or(t.File, t.Name)
		list = append(list, t)
	}
	if o.of.tensors != nil {
		o.of.tensors(o.c, list)
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
		if on, ok := t[cmp.Or(x.File, x.Name)]; ok {
			if o.stride(&x) > 0 {
				on.Shape = x.Shape
			}
			t[x.Name] = on
		} else if x.State {
			if t[x.Name], err = o.state(c.Device(), &x); err != nil {
				return err
			}
		}
	}
	return of.Record(c, t, workspace, p.Kit())
}

// state returns a tensor of zeros, which is made once.
func (o calledOp[C]) state(d *vk.Device, x *call.Tensor) (t vk.Tensor, err error) {
	if t, ok := o.states[x.Name]; ok {
		return t, nil
	}
	if t, err = d.NewTensor(x.Name, x.DType, x.Shape...); err != nil {
		return t, err
	}
	o.states[x.Name] = t
	return t, t.Zero(context.Background())
}

// A sampler is a call that computes what some elements should be from tensors in float32, which are
// too large for float64.
type sampler interface {
	Sampled(x map[string][]float32) call.Outputs
}

// Reference implements bench.Op.
func (o calledOp[C]) Reference(t map[string][]float32, p bench.Pass) (bench.Expectations, error) {
	c := call.Copy(o.c).(C)
	if o.of.sample != nil {
		c.Given().Sample = o.of.sample(c)
	}
	var want call.Outputs
	roles := map[string]call.Tensor{}
	for _, x := range o.Tensors() {
		roles[x.Name] = x
	}
	if s, ok := any(c).(sampler); ok {
		t = maps.Clone(t)
		for _, x := range c.Tensors() {
			if values, ok := t[x.File]; ok {
				t[x.Name] = values
			}
		}
		want = s.Sampled(t)
	} else {
		x := call.Values{}
		for name, values := range t {
			x[name] = wide(values)
		}
		want = c.Want(x, p.Kit())
	}
	var list bench.Expectations
	for _, t := range c.Tensors() {
		w, ok := want.Of(t.Name)
		if role := roles[cmp.Or(t.File, t.Name)]; ok && !t.Off && !t.State && p.Writes(role.Role) {
			list = append(list, o.expected(&t, w))
		}
	}
	return list, nil
}

// expected returns an output, in rows that may lie apart.
func (o calledOp[C]) expected(t *call.Tensor, w call.Wanted) bench.Expected {
	e := bench.Expected{Name: cmp.Or(t.File, t.Name), Want: w.Want, Limit: w.Bound, Limits: w.Bounds, At: w.Sample}
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
	return calledOp[C]{o.of, c, o.lines, o.states}.op()
}

// Use implements bench.Tuner.
func (o tunedOp[C]) Use(tuning *kit.Tuning) bench.Op {
	return o.with(func(c C) { c.Given().Tuning = tuning })
}

// Tunables implements bench.Tuner.
func (o tunedOp[C]) Tunables(caps *vk.Caps, p bench.Pass) ([]bench.Tunable, error) {
	return o.of.tune(caps, o, p)
}
