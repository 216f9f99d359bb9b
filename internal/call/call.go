// Package call describes each call of a kernel once. Everything that runs, checks or measures a
// kernel takes the call from here:
//
//	flashvk run, bench, tune     internal/bench/kernels: flags and texts of a command
//	random problems, self-test   internal/bench/trial
//	fixed problems               tests/conformance
//	finite differences           tests/gradients
//	the contract of a package    tests/contract_test.go
//	tests of a kernel            its device_test.go, by [Test] and [Case]
//
// A row of [All] also has how calls are drawn, and the fixed ones ([Kernel]).
//
// The description of a kernel is a struct of plain exported fields, which encoding/json writes and
// reads: the kernel's problem and configuration, which of its optional tensors there are, [Direction]
// if it has two passes, and [Data]. Four methods say the rest:
//
//	Tensors  name, shape, format and role of each tensor, and the size of the numbers in an input
//	Want     the outputs of a pass in float64, and how far a kernel may be from them
//	Host     the functions of the kernel's package
//	Tidy     repairs a call whose fields do not fit each other; Adjust, if what inputs hold depends
//	         on each other; Hide, if a call does not read all of an input: the rest is NaN in what it
//	         returns; First, if a backward pass may need outputs of a device
//
// The rest follows by reflection: a tensor is the field of the kernel's Tensors or Gradients whose
// name it has, the reference's slices too ([Bind], [Pair]); a flag, a key or an axis of a file's
// tensor is the field of the problem ([Field]); a failure shrinks field by field ([Smaller]).
package call

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Call is a call of a kernel: a pointer to a struct that embeds the kernel's Problem and Data.
type Call interface {
	Validate() error
	Pass() kit.Pass // that the call itself means; methods take any that the kernel has
	// Tensors lists the tensors of all passes. Their order stays: it numbers the sources of random
	// numbers.
	Tensors() []Tensor
	// Want returns the outputs of a pass, given what Inputs returns. For a backward pass it also
	// has the outputs of the forward pass that the backward pass reads.
	Want(x Values, pass kit.Pass) Outputs
	Host() Host
	// Given returns the embedded Data.
	Given() *Data
}

// A Recording records what is bound to its tensors. It returns what is wrong with the call.
type Recording func(c *vk.Cmd) error

// failed returns a Recording that returns an error.
func failed(err error) Recording { return func(*vk.Cmd) error { return err } }

// A Host is what runs a call: the functions of its package.
type Host struct {
	// Choose returns what runs on a device.
	Choose func(caps *vk.Caps, pass kit.Pass) (kit.Plan, error)
	// Bind returns what records a pass on tensors. The workspace is as large as the plan says, or nil.
	// What Bind does takes longer than a kernel's call does, which bench measures.
	Bind func(t map[string]vk.Tensor, workspace *vk.Buffer, pass kit.Pass) Recording
	// WorkspaceOffset is where the workspace begins in its buffer, in bytes.
	WorkspaceOffset int
}

// hosted returns the Host of a package that keeps the contract of package kit. The package's options are
// the fields of the call with their names.
func hosted[T, G, P, O any, L kit.Plan](c Call, p P, choose func(*vk.Caps, P, kit.Pass, O) (L, error),
	forward func(*vk.Cmd, T, P, O) error, backward func(*vk.Cmd, T, G, P, O) error,
) Host {
	return Host{Choose: func(caps *vk.Caps, pass kit.Pass) (kit.Plan, error) {
		o, err := optionsOf[O](c, nil)
		if err != nil {
			return nil, err
		}
		return choose(caps, p, pass, o)
	}, Bind: func(t map[string]vk.Tensor, workspace *vk.Buffer, pass kit.Pass) Recording {
		o, err := optionsOf[O](c, workspace)
		if err != nil {
			return failed(err)
		}
		var x T
		var g G
		Bind(t, &x, &g)
		if pass == kit.Backward {
			return func(c *vk.Cmd) error { return backward(c, x, g, p, o) }
		}
		return func(c *vk.Cmd) error { return forward(c, x, p, o) }
	}}
}

// hostedForward is hosted for a package of one pass.
func hostedForward[T, P, O any, L kit.Plan](c Call, p P, choose func(*vk.Caps, P, kit.Pass, O) (L, error), forward func(*vk.Cmd, T, P, O) error) Host {
	return hosted[T, struct{}](c, p, choose, forward, nil)
}

// engineHost is hosted for a product of packages engine and skinny, which may be given a workspace that does
// not begin with its buffer.
func engineHost(options func() (engine.Options, error), given bool, choose func(*vk.Caps, engine.Options) (kit.Plan, error),
	bind func(map[string]vk.Tensor, engine.Options) Recording,
) (h Host) {
	if given {
		h.WorkspaceOffset = 16 * 5
	}
	h.Choose = func(caps *vk.Caps, _ kit.Pass) (kit.Plan, error) {
		opt, err := options()
		if err != nil {
			return nil, err
		}
		return choose(caps, opt)
	}
	h.Bind = func(t map[string]vk.Tensor, workspace *vk.Buffer, _ kit.Pass) Recording {
		opt, err := options()
		if err != nil {
			return failed(err)
		}
		opt.Workspace, opt.WorkspaceOffset = workspace, int64(h.WorkspaceOffset)
		return bind(t, opt)
	}
	return h
}

// With returns a Host that binds tensors after a change.
func (h Host) With(change func(t map[string]vk.Tensor)) Host {
	bind := h.Bind
	h.Bind = func(t map[string]vk.Tensor, workspace *vk.Buffer, pass kit.Pass) Recording {
		t = maps.Clone(t)
		change(t)
		return bind(t, workspace, pass)
	}
	return h
}

// optionsOf returns the options of a package. Calls have the path of engines as text.
func optionsOf[O any](c Call, workspace *vk.Buffer) (o O, err error) {
	for i := range reflect.TypeFor[O]().NumField() {
		to, name := reflect.ValueOf(&o).Elem().Field(i), reflect.TypeFor[O]().Field(i).Name
		from := Field(c, name)
		switch impl, ok := to.Addr().Interface().(*engine.Impl); {
		case name == "Workspace":
			to.Set(reflect.ValueOf(workspace))
		case ok:
			*impl, err = engine.ParseImpl(cmp.Or(from.String(), "auto"))
		default:
			to.Set(from.Convert(to.Type()))
		}
	}
	return o, err
}

// A simplePlan is a plan of kernels that a call lists itself.
type simplePlan struct {
	text    string
	bytes   int64
	kernels []string
}

func (p simplePlan) String() string    { return p.text }
func (p simplePlan) Workspace() int64  { return p.bytes }
func (p simplePlan) Kernels() []string { return p.kernels }

// A onePass is embedded in calls that have no backward pass.
type onePass struct{}

func (onePass) Pass() kit.Pass { return kit.Forward }

// A Direction is the pass of a call that has two.
type Direction struct{ Backward bool }

func (d Direction) Pass() kit.Pass {
	if d.Backward {
		return kit.Backward
	}
	return kit.Forward
}

// A Role says who reads and writes a tensor.
type Role uint8

// The roles.
const (
	Input    Role = iota // read by both passes
	Update               // read and written by the forward pass
	Output               // written by the forward pass, and read by the backward pass
	Upstream             // read by the backward pass: the gradient of an output
	Gradient             // written by the backward pass
)

// A Tensor is a tensor of a call.
type Tensor struct {
	Name  string
	DType dtype.DType
	Shape []int
	Role  Role
	Scale float64      // of the numbers in an input; 0: 1
	Main  bool         // an input that has the outliers and zeros of Data.Kind
	Rows  bool         // an input whose rows have the means of Data
	Once  bool         // the backward pass does not read it
	Off   bool         // this call has no such tensor
	Drawn bool         // Inputs has numbers of the input even so: others follow from them
	Own   bool         // Adjust draws what an input holds
	Part  []int        // the shape of the elements that count, as in guard.Tensor
	Align int          // what its offset and strides are multiples of; 0: 1
	Place *guard.Place // where it lies; nil: Data says it
	Lines bool         // rows lie at whole lines of memory in benchmarks
	// Memory names a buffer that it shares with others, one after the other; "": it has its own.
	Memory string
	State  bool   // zeros, or Ints, which calls leave as they are: a command makes it
	File   string // its name in files, if it has another
	// Values returns what benchmarks measure with, or Ints for a tensor of integers. Free says that
	// integers of a file may be anything. The others are counts up to Most.
	Values func() []float32
	Ints   []int32
	Free   bool
	// Draw makes a number of an input from one of the standard normal distribution, instead of
	// Scale. Most is the largest value of a count.
	Draw func(x float64) float64
	Most int
}

// Reads reports whether a pass reads what was in a tensor before.
func (r Role) Reads(pass kit.Pass) bool {
	return r == Input || r == Update || pass == kit.Backward && r != Gradient
}

// Writes reports whether a pass writes a tensor.
func (r Role) Writes(pass kit.Pass) bool {
	if pass == kit.Backward {
		return r == Gradient
	}
	return r == Update || r == Output
}

func (t *Tensor) reads(pass kit.Pass) bool {
	return !t.Off && t.Role.Reads(pass) && !(t.Once && pass == kit.Backward)
}

func (t *Tensor) writes(pass kit.Pass) bool { return !t.Off && t.Role.Writes(pass) }

// Values are the contents of tensors by name, row-major.
type Values map[string][]float64

// A Wanted is what an output should hold.
type Wanted struct {
	Want   []float64
	Bound  float64
	Bounds []float64 // of the elements, or of the elements of the last axis, instead of Bound
	Sample []int     // as in guard.Tensor
	Any    bool      // the pass may write anything
}

// Outputs are the outputs of a pass, by name, or by joined names.
type Outputs map[string]Wanted

// joined returns a name in the form in which names of tensors, flags and fields are equal.
func joined(name string) string {
	return strings.ToLower(strings.ReplaceAll(strings.ReplaceAll(name, "_", ""), "-", ""))
}

// of returns the output for the elements of sample; nil: all.
func (w Wanted) of(sample []int) Wanted {
	w.Sample = sample
	return w
}

// pad adds zeros to the rows of an output.
func (w *Wanted) pad(cols, to int) {
	var all Wanted
	for at := 0; at < len(w.Want); at += cols {
		all.Want = append(append(all.Want, w.Want[at:at+cols]...), make([]float64, to-cols)...)
		if w.Sample != nil {
			all.Sample = append(all.Sample, Elements([]int{w.Sample[at] / cols}, to)...)
		}
	}
	w.Want, w.Sample = all.Want, all.Sample
}

// Of returns the output of a tensor.
func (o Outputs) Of(name string) (w Wanted, ok bool) {
	if w, ok = o[name]; !ok {
		w, ok = o[joined(name)]
	}
	return w, ok
}

// With returns the outputs of both.
func (o Outputs) With(more Outputs) Outputs {
	maps.Copy(o, more)
	return o
}

// Pair returns the slices of a struct as outputs with the names of its fields. Their bounds are the
// fields of the same names in another struct; nil: none.
func Pair(want, bounds any) Outputs {
	o, w := Outputs{}, reflect.ValueOf(want)
	for i := range w.NumField() {
		name := w.Type().Field(i).Name
		x := Wanted{Want: w.Field(i).Interface().([]float64)}
		if bounds != nil {
			x.Bound = reflect.ValueOf(bounds).FieldByName(name).Float()
		}
		o[joined(name)] = x
	}
	return o
}

// Bind sets the fields of structs that have the names of entries of a map: LogSigma is log_sigma.
func Bind[T any](from map[string]T, to ...any) {
	for name, x := range from {
		for _, s := range to {
			if f := lookup(reflect.ValueOf(s).Elem(), name); f.IsValid() && f.Type() == reflect.TypeFor[T]() {
				f.Set(reflect.ValueOf(x))
			}
		}
	}
}

// Field returns the field of a call of the name of a flag, a key or an option; invalid: there is none.
func Field(c Call, name string) reflect.Value { return lookup(reflect.ValueOf(c).Elem(), name) }

func lookup(v reflect.Value, name string) reflect.Value {
	name = joined(name)
	return v.FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) })
}

// Copy returns a copy, which shares what fields point at.
func Copy(c Call) Call {
	v := reflect.New(reflect.TypeOf(c).Elem())
	v.Elem().Set(reflect.ValueOf(c).Elem())
	return v.Interface().(Call)
}

// Inputs returns the values of the tensors that no pass writes, and of the tensors that passes
// update.
func Inputs(c Call) Values {
	x, d := Values{}, c.Given()
	for i, t := range c.Tensors() {
		if (!t.Off || t.Drawn) && !t.Own && t.Role != Output && t.Role != Gradient {
			x[t.Name] = d.input(i, &t)
		}
	}
	if a, ok := c.(interface{ Adjust(x Values) }); ok {
		a.Adjust(x)
	}
	return x
}

// Case returns a pass of a call, on inputs of Inputs, as a case of package guard: the tensors that
// the pass reads or writes, and its workspace, if the call is given one.
func Case(caps *vk.Caps, c Call, pass kit.Pass, x Values) (k guard.Case, record guard.Record, err error) {
	plan, err := c.Host().Choose(caps, pass)
	if err != nil {
		return k, nil, err
	}
	d, want, hidden := c.Given(), c.Want(x, pass), Values(nil)
	if h, ok := c.(interface{ Hide(x Values) Values }); ok {
		hidden = h.Hide(x)
	}
	k.Name = strings.ToLower(reflect.TypeOf(c).Elem().Name())
	for _, t := range c.Tensors() {
		if !t.reads(pass) && !t.writes(pass) {
			continue
		}
		g := t.guard(pass, x[t.Name], want)
		if values := hidden[t.Name]; values != nil {
			g.Values, g.Hides = values, true
		}
		if g.Place = t.Place; g.Place == nil && d.Layout != "" {
			g.Place = d.Place(len(k.Tensors), t.Shape)
			for _, n := range []*int{&g.Place.Offset, &g.Place.RowGap, &g.Place.MatrixGap} {
				*n -= *n % max(t.Align, 1)
			}
		}
		k.Tensors = append(k.Tensors, g)
	}
	k.Tensors = append(k.Tensors, d.WorkspaceTensor(plan.Workspace(), c.Host().WorkspaceOffset)...)
	return k, func(cmd *vk.Cmd, t map[string]vk.Tensor) error {
		before := cmd.Modules()
		if err := c.Host().Bind(t, t[WorkspaceName].Buffer, pass)(cmd); err != nil {
			return err
		}
		return planned(plan, before, cmd.Modules())
	}, nil
}

// planned wants a recording to have the kernels that a plan names, in any format, and besides only
// kernels that the Cmd had before. Whether gemm_align copies rows only shows with their tensors.
func planned(plan kit.Plan, before, after []vk.ModuleInfo) error {
	kernel := func(module string) string { return strings.Split(module, ".")[0] }
	named, recorded := map[string]bool{"gemm_align": true}, map[string]bool{"gemm_align": true}
	for _, name := range plan.Kernels() {
		named[kernel(name)] = true
	}
	for _, m := range after {
		recorded[kernel(m.Name)] = true
		if !named[kernel(m.Name)] && !slices.ContainsFunc(before, func(b vk.ModuleInfo) bool { return b.Name == m.Name }) {
			return fmt.Errorf("call: %s runs, which the plan lacks: %v", m.Name, plan.Kernels())
		}
	}
	for name := range named {
		if !recorded[name] {
			return fmt.Errorf("call: %s of the plan does not run", name)
		}
	}
	return nil
}

// guard returns the tensor of a pass for package guard. Values are the values of an input.
func (t *Tensor) guard(pass kit.Pass, values []float64, want Outputs) guard.Tensor {
	g := guard.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Part: t.Part, Values: values, Memory: t.Memory}
	o, known := want.Of(t.Name)
	if writes := t.writes(pass); !known && (writes || t.Role == Output) {
		panic("call: Want lacks " + t.Name)
	} else if writes {
		g.Want, g.Bound, g.Sample, g.Scratch = o.Want, o.Bound, o.Sample, o.Any
		if len(o.Bounds) > 0 {
			g.Bounds = slices.Repeat(o.Bounds, len(o.Want)/len(o.Bounds))
		}
	} else if t.Role == Output {
		g.Values = make([]float64, len(o.Want))
		for i, v := range o.Want {
			g.Values[i] = float64(t.DType.Round(float32(v)))
		}
	}
	return g
}

// Test checks passes of a call, on inputs of Inputs if x is nil.
func Test(t guard.T, d *vk.Device, c Call, x Values, passes ...kit.Pass) {
	t.Helper()
	if x == nil {
		x = Inputs(c)
	}
	for _, pass := range passes {
		k, record, err := Case(d.Caps(), c, pass, x)
		if err != nil {
			t.Fatalf("%v: %v", pass, err)
		}
		report, err := k.Check(d, record)
		if err != nil {
			t.Fatalf("%v of %+v: %v", pass, c, err)
		}
		t.Log(pass, report)
	}
}

// TestDrawn checks n drawn calls of a kernel that the device takes, four times as many where that is a
// GPU, half of them on a software driver without Space.Thorough. Two draws each share what a pipeline is
// compiled for. Change, if it is not nil, changes a drawn call before the test. If the device takes no
// call, the error is the error of Choose.
func TestDrawn(t guard.T, d *vk.Device, kernel string, n int, s Space, change func(c Call)) (err error) {
	t.Helper()
	all := All()
	k := all[slices.IndexFunc(all, func(k Kernel) bool { return k.Name == kernel })]
	switch s.Work, s.Soft = 2e6, d.Caps().Type == vk.CPU; {
	case !s.Soft:
		n *= 4
	case !s.Thorough:
		n = (n + 1) / 2
	}
	ran := 0
	for i := uint64(0); ran < n && i < 400; i++ {
		c := k.Draw(rand.New(rand.NewPCG(5, i/2)), rand.New(rand.NewPCG(6, i)), s)
		if c == nil {
			continue
		}
		if change != nil {
			change(c)
		}
		if _, refused := c.Host().Choose(d.Caps(), c.Pass()); refused != nil {
			err = refused
			continue
		}
		Test(t, d, c, nil, c.Pass())
		if x, ok := c.(interface{ Close() }); ok {
			x.Close()
		}
		ran++
	}
	if ran > 0 {
		err = nil
	}
	return err
}
