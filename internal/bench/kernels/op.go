package kernels

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A calledOp is a call as a bench.Op.
type calledOp[C call.Call] struct {
	of     *calls[C]
	c      C
	lines  bool                 // rows lie at whole lines of memory if call.Tensor.Lines says so
	states map[string]vk.Tensor // what call.Tensor.State says, by name; copies of the op share them
}

func (o calledOp[C]) Name() string { return o.of.name }

// Describe implements bench.Op. An op without a text of its own lists its keys: all sizes, and
// other keys that differ from the call without flags in the same format.
func (o calledOp[C]) Describe() string {
	if o.of.describe != nil {
		return o.of.describe(o.c)
	}
	usual, format := o.of.base(false), "float32"
	if to := call.Field(usual, "dtype"); to.IsValid() {
		to.Set(call.Field(o.c, "dtype"))
		format = fmt.Sprint(to)
	}
	if o.of.check != nil {
		o.of.check(usual, pflag.NewFlagSet("", pflag.PanicOnError)) // it sets what follows
	}
	var words []string
	defaults := o.of.keysOf(usual)
	for i, k := range o.Keys() {
		name := strings.ReplaceAll(k.Name, "_", "-")
		switch _, size := k.Value.(int); {
		case size && k.Value != 0, k.Value != defaults[i].Value && k.Value != true:
			words = append(words, fmt.Sprintf("%s %v", name, k.Value))
		case k.Value == true:
			words = append(words, name)
		}
	}
	return format + ": " + strings.Join(words, ", ")
}

func (o calledOp[C]) Keys() []bench.Key { return o.of.keysOf(o.c) }

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

func (o calledOp[C]) Tensors() (list []call.Tensor) {
	for _, t := range o.c.Tensors() {
		if t.Off || t.State {
			continue
		}
		if stride := o.stride(&t); stride > 0 {
			t.Part, t.Shape = t.Shape, append(slices.Clone(t.Shape[:len(t.Shape)-1]), stride)
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

func (o calledOp[C]) Choose(caps *vk.Caps, impl string, p bench.Pass) (kit.Plan, error) {
	c, err := o.on(impl, p)
	if err != nil {
		return nil, err
	}
	return c.Host().Choose(caps, p.Kit())
}

func (o calledOp[C]) Bind(d *vk.Device, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p bench.Pass) (call.Recording, error) {
	of, err := o.on(impl, p)
	if err != nil {
		return nil, err
	}
	t = maps.Clone(t)
	for _, x := range of.Tensors() {
		if on, ok := t[cmp.Or(x.File, x.Name)]; ok {
			if o.stride(&x) > 0 {
				on.Shape = x.Shape
			}
			t[x.Name] = on
		} else if x.State {
			if t[x.Name], err = o.state(d, &x); err != nil {
				return nil, err
			}
		}
	}
	return of.Host().Bind(t, workspace, p.Kit()), nil
}

// state returns a tensor of zeros, or of Ints, which is made once.
func (o calledOp[C]) state(d *vk.Device, x *call.Tensor) (t vk.Tensor, err error) {
	if t, ok := o.states[x.Name]; ok {
		return t, nil
	}
	if t, err = d.NewTensor(x.Name, x.DType, x.Shape...); err != nil {
		return t, err
	}
	o.states[x.Name] = t
	if x.Ints != nil {
		return t, t.UploadInts(context.Background(), x.Ints)
	}
	return t, t.Zero(context.Background())
}

// A sampler is a call that computes what some elements should be from tensors in float32, which are
// too large for float64.
type sampler interface {
	Sampled(x map[string][]float32) call.Outputs
}

func (o calledOp[C]) Reference(t map[string][]float32, p bench.Pass) (call.Outputs, error) {
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
			x[name] = call.Wide(values)
		}
		want = c.Want(x, p.Kit())
	}
	list := call.Outputs{}
	for _, t := range c.Tensors() {
		name := cmp.Or(t.File, t.Name)
		if w, ok := want.Of(t.Name); ok && !t.Off && !t.State && p.Writes(roles[name].Role) {
			list[name] = w
		}
	}
	return list, nil
}

// with returns the op of a copy of the call.
func (o calledOp[C]) with(change func(c C)) bench.Op {
	c := call.Copy(o.c).(C)
	change(c)
	return calledOp[C]{o.of, c, o.lines, o.states}
}

func (o calledOp[C]) Use(tuning *kit.Tuning) bench.Op {
	return o.with(func(c C) { c.Given().Tuning = tuning })
}

func (o calledOp[C]) Tunables(caps *vk.Caps, p bench.Pass) ([]bench.Tunable, error) {
	switch problem := call.Field(o.c, "problem"); {
	case o.of.tune != nil:
		return o.of.tune(caps, o, p)
	case rows[o.Name()].Tune != nil && problem.IsValid(): // a group of products has several
		return o.choices(p, problem.Interface(), nil), nil
	}
	return nil, fmt.Errorf("%s: %s has no configurations to choose from", o.Name(), o.Describe())
}

// choices returns the configurations of the table of a problem. They go into the field of their type, or
// as text into the field config. Only, if it is not nil, is the only one beside the table's choice.
func (o calledOp[C]) choices(p bench.Pass, problem any, only bench.Candidate) []bench.Tunable {
	x := bench.Tunable{Op: o, Pass: p, Space: *table.SpaceOf(o.of.name, p.Kit(), problem), With: func(c bench.Candidate) bench.Op {
		return o.with(func(to C) {
			for _, name := range []string{"config", "backward_config"} {
				if field := call.Field(to, name); field.IsValid() && field.Kind() == reflect.String {
					field.SetString(c.String())
				} else if field.IsValid() && field.Type().Elem() == reflect.TypeOf(c) {
					field.Set(reflect.New(field.Type().Elem()))
					field.Elem().Set(reflect.ValueOf(c))
				}
			}
		})
	}}
	all := x.Candidates
	x.Candidates = func(caps *vk.Caps, impl string) ([]bench.Candidate, error) {
		list, err := all(caps, impl)
		if err != nil || only == nil {
			return list, err
		}
		if list = list[:1]; x.Path(only) == impl && only != list[0] {
			list = append(list, only)
		}
		return list, nil
	}
	return []bench.Tunable{x}
}

// costs are the operations and the least traffic of a problem. One with a backward pass also has
// BackwardFLOPs and BackwardBytes.
type costs interface {
	FLOPs() float64
	Bytes() float64
}

func (o calledOp[C]) Cost(p bench.Pass) (flops, bytes float64) {
	if p == bench.Backward {
		back := any(o.c).(interface {
			BackwardFLOPs() float64
			BackwardBytes() float64
		})
		return back.BackwardFLOPs(), back.BackwardBytes()
	}
	of := any(o.c).(costs)
	return of.FLOPs(), of.Bytes()
}
