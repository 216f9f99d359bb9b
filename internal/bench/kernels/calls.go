package kernels

import (
	"fmt"
	"reflect"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// calls are the calls of a kernel that package call describes, for the command line. It makes Flags.
type calls[C call.Call] struct {
	name     string
	flags    []flag
	base     func(cpu bool) C                                 // the call of no flags
	file     func(h Header, c C) error                        // sets sizes and formats from the tensors of a file
	suite    func(small bool) []C                             // the training workload
	describe func(c C) string                                 // for Op.Describe
	keys     func(c C) []bench.Key                            // for Op.Keys; fieldKeys
	tune     func(op calledOp[C], p bench.Pass) bench.Tunable // nil: there are no configurations
}

// A flag is a flag of the field of a call with its name.
type flag struct {
	name, usage string
	size        bool // command run has it from the file
}

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
		field, cpu := call.Field(f.given, x.name), call.Field(f.base(true), x.name)
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
		case *dtype.DType:
			DTypeVar(set, to, x.name, x.usage)
		default:
			panic("kernels: no flag has the type of " + x.name)
		}
	}
}

// FromFlags implements Flags.
func (f *callFlags[C]) FromFlags(cpu bool) (bench.Op, error) {
	c := f.base(cpu)
	for _, x := range f.flags {
		if f.set.Changed(x.name) {
			call.Field(c, x.name).Set(call.Field(f.given, x.name))
		}
	}
	return f.op(c), c.Validate()
}

// FromFile implements Flags.
func (f *callFlags[C]) FromFile(in File) (bench.Op, error) {
	c := call.Copy(f.given).(C)
	for _, x := range f.flags {
		if x.size {
			call.Field(c, x.name).SetZero()
		}
	}
	if err := f.file(in.Tensors(), c); err != nil {
		return nil, err
	}
	return f.op(c), c.Validate()
}

// Suite implements Flags.
func (f *callFlags[C]) Suite(small bool) (list []bench.Op) {
	for _, c := range f.suite(small) {
		list = append(list, f.op(c))
	}
	return list
}

// op returns a call as a bench.Op, and as a bench.Tuner if there are configurations.
func (k *calls[C]) op(c C) bench.Op {
	if k.tune != nil {
		return tunedOp[C]{calledOp[C]{k, c}}
	}
	return calledOp[C]{k, c}
}

// into sets the fields of a call that have the names of a tensor's format and axes. The first tensor
// with an axis says its size.
func (h Header) into(c call.Call, tensor, format string, axes ...string) error {
	shape, t, err := h.Floats(tensor, axes...)
	if err != nil {
		return err
	}
	call.Field(c, format).Set(reflect.ValueOf(t))
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
	of *calls[C]
	c  C
}

// Name implements bench.Op.
func (o calledOp[C]) Name() string { return o.of.name }

// Describe implements bench.Op.
func (o calledOp[C]) Describe() string { return o.of.describe(o.c) }

// Keys implements bench.Op.
func (o calledOp[C]) Keys() []bench.Key { return o.of.keys(o.c) }

// Cost implements bench.Op.
func (o calledOp[C]) Cost(p bench.Pass) (flops, bytes float64) { return cost(any(o.c).(costs), p) }

// Tensors implements bench.Op.
func (o calledOp[C]) Tensors() (list []bench.OpTensor) {
	for _, t := range o.c.Tensors() {
		if t.Off {
			continue
		}
		x := bench.OpTensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Role: bench.Role(t.Role)}
		if scale := float32(call.OrOne(t.Scale)); scale != 1 {
			x.Draw = func(x float32) float32 { return scale * x }
		}
		list = append(list, x)
	}
	return list
}

// Choose implements bench.Op.
func (o calledOp[C]) Choose(caps *vk.Caps, _ string, p bench.Pass) (kit.Plan, error) {
	return o.c.Choose(caps, p.Kit())
}

// Record implements bench.Op.
func (o calledOp[C]) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, _ string, p bench.Pass) error {
	return o.c.Record(c, t, workspace, p.Kit())
}

// Reference implements bench.Op.
func (o calledOp[C]) Reference(t map[string][]float32, p bench.Pass) (bench.Reference, error) {
	x := call.Values{}
	for name, values := range t {
		x[name] = wide(values)
	}
	want := o.c.Want(x, p.Kit())
	var list bench.Expectations
	for _, t := range o.Tensors() {
		w, ok := want.Of(t.Name)
		if !ok || !t.Written(p) {
			continue
		}
		if w.Bounds == nil {
			list = append(list, bench.Expected{Name: t.Name, Want: w.Want, Limit: w.Bound, At: w.Sample})
		}
		for i, limit := range w.Bounds { // each element, or each of the last axis, has a limit of its own
			e := bench.Expected{Name: t.Name, Limit: limit}
			for at := i; at < len(w.Want); at += len(w.Bounds) {
				e.At, e.Want = append(e.At, at), append(e.Want, w.Want[at])
			}
			list = append(list, e)
		}
	}
	return list, nil
}

// A tunedOp is a calledOp with configurations: a bench.Tuner.
type tunedOp[C call.Call] struct{ calledOp[C] }

// with returns the op of a copy of the call.
func (o calledOp[C]) with(change func(c C)) bench.Op {
	c := call.Copy(o.c).(C)
	change(c)
	return o.of.op(c)
}

// Use implements bench.Tuner.
func (o tunedOp[C]) Use(tuning *kit.Tuning) bench.Op {
	return o.with(func(c C) { c.Given().Tuning = tuning })
}

// Tunables implements bench.Tuner.
func (o tunedOp[C]) Tunables(_ *vk.Caps, p bench.Pass) ([]bench.Tunable, error) {
	return []bench.Tunable{o.of.tune(o.calledOp, p)}, nil
}
