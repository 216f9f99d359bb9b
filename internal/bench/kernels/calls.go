package kernels

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
)

// calls are the calls of a kernel that package call describes, for the command line. It makes Flags.
// Functions that are nil do nothing.
type calls[C call.Call] struct {
	name     string
	values   map[string]value                           // of flags whose fields have none of the usual types
	start    func() C                                   // what calls have that no flag says; nil: nothing
	unsaid   func(c C, f *pflag.FlagSet)                // sets what follows from other flags
	check    func(c C, f *pflag.FlagSet) error          // of flags, beside what Validate checks
	file     func(s *Source, c C) error                 // sets sizes and formats from the tensors of a file
	op       func(c C, lines bool) (bench.Op, error)    // of a call; nil: a calledOp
	shrink   func(c C, by [3]int)                       // makes a case of a suite smaller
	describe func(c C) string                           // for Op.Describe; nil: of keys
	keys     string                                     // for Op.Keys; "": of the page
	derived  func(c C) map[string]any                   // the values of keys that no field has
	path     func(c C, impl string, p bench.Pass) error // sets the fields of a path; nil: Impl, if there is one
	sample   func(c C) int                              // how many rows the reference has, if there are more; nil: all
	tensors  func(c C, list []call.Tensor)              // completes the list of tensors of a call
	aliases  map[string]string                          // other programs' names of tensors
	axes     func(c C, tensor string, rank int) []int   // for Flags.Axes
	doubts   func(c C, f *pflag.FlagSet) []string       // for Flags.Doubts
	// tune returns what is tuned; nil: the pass, if the kernel's row has a Tune.
	tune func(caps *vk.Caps, op calledOp[C], p bench.Pass) ([]bench.Tunable, error)
}

// A value makes the value of a flag, of a pointer to the field.
type value = func(to any) pflag.Value

// parsed returns the value of a flag of type T.
func parsed[T any](parse func(string) (T, error), kind string) value {
	return func(to any) pflag.Value { return Value[T]{to.(*T), parse, kind, ""} }
}

// of returns the field of a call.
func (x *flag) of(c call.Call) reflect.Value {
	name, within, _ := strings.Cut(cmp.Or(x.field, x.name), ".")
	if v := call.Field(c, name); within != "" {
		return v.FieldByName(within)
	} else {
		return v
	}
}

// callFlags implements Flags.
type callFlags[C call.Call] struct {
	*calls[C]
	given C // the values of flags
	set   *pflag.FlagSet
}

// base returns the call of no flags: of the flags that the part defaults of the page has.
func (k *calls[C]) base(cpu bool) (c C) {
	if k.start != nil {
		c = k.start()
	} else {
		c = reflect.New(reflect.TypeFor[C]().Elem()).Interface().(C)
	}
	page, set := pageOf(k.name), pflag.NewFlagSet(k.name, pflag.PanicOnError)
	for i := range page.flags {
		k.add(set, c, &page.flags[i], "", "")
	}
	for i, flags := range strings.Split(page.parts["defaults"], "\n") {
		if i == 0 || cpu {
			set.Parse(strings.Fields(flags)) // it panics
		}
	}
	return c
}

// New returns the flags of a command.
func (k *calls[C]) New() Flags { return k.newFlags() }

func (k *calls[C]) newFlags() *callFlags[C] {
	return &callFlags[C]{calls: k, given: k.base(false), set: pflag.NewFlagSet(k.name, pflag.PanicOnError)}
}

// Add implements Flags. A usage text that names no default gets the defaults.
func (f *callFlags[C]) Add(set *pflag.FlagSet, sizes bool) {
	f.set = set
	cpu := f.base(true)
	for _, x := range pageOf(f.name).flags {
		if x.size && !sizes || x.file && sizes {
			continue
		}
		text := ""
		switch field, other := x.of(f.given), x.of(cpu); {
		case strings.Contains(x.usage, "(default"):
		case !field.Equal(other):
			x.usage += fmt.Sprintf(" (default %v, or %v on a CPU device)", field, other)
		case !field.IsZero():
			text = fmt.Sprint(field)
		}
		f.add(set, f.given, &x, x.usage, text)
	}
}

// add adds the flag of a field of c. Text is the default that help prints.
func (k *calls[C]) add(set *pflag.FlagSet, c C, x *flag, usage, text string) {
	to, unsaid := x.of(c).Addr().Interface(), x.unsaid
	var value pflag.Value
	switch to := to.(type) {
	case *bool:
		value, unsaid = Value[bool]{to, parseBool, "bool", text}, "true"
	case *int:
		value = Value[int]{to, ParseInt, intKind, text}
	case *float64:
		value = Value[float64]{to, ParseFloat, "F", text}
	case *dtype.DType:
		value = Value[dtype.DType]{to, ParseDType, dtypeKind, text}
	case *dtype.Option:
		value = Value[dtype.Option]{to, parseOption, dtypeKind, ""}
	case *string:
		value = Value[string]{to, func(text string) (string, error) { return text, nil }, "string", ""}
	}
	if made := k.values[x.name]; made != nil {
		value = made(to)
	}
	set.Var(value, x.name, usage)
	set.Lookup(x.name).NoOptDefVal = unsaid
}

// call returns the call of the flags.
func (f *callFlags[C]) call(cpu bool) C {
	c := f.base(cpu)
	f.change(c, true)
	if f.unsaid != nil {
		f.unsaid(c, f.set)
	}
	return c
}

// change sets the fields of a call whose flags are given, with or without the flags of sizes.
func (f *callFlags[C]) change(c C, sizes bool) {
	for _, x := range pageOf(f.name).flags {
		if f.set.Changed(x.name) && (sizes || !x.size) {
			x.of(c).Set(x.of(f.given))
		}
	}
}

func (f *callFlags[C]) Op(cpu bool) (bench.Op, error) { return f.valid(f.call(cpu), f.set, true) }

// valid returns a call as a bench.Op, or what is wrong with it.
func (k *calls[C]) valid(c C, f *pflag.FlagSet, lines bool) (bench.Op, error) {
	if k.check != nil {
		if err := k.check(c, f); err != nil {
			return nil, err
		}
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if k.op != nil {
		return k.op(c, lines)
	}
	return k.newOp(c, lines), nil
}

func (k *calls[C]) newOp(c C, lines bool) bench.Op {
	return calledOp[C]{k, c, lines, map[string]vk.Tensor{}}
}

// read implements Flags.
func (f *callFlags[C]) read(s *Source) (bench.Op, error) {
	c := call.Copy(f.given).(C)
	for _, x := range pageOf(f.name).flags {
		if x.size {
			x.of(c).SetZero()
		}
	}
	if err := f.file(s, c); err != nil {
		return nil, err
	}
	return f.valid(c, f.set, false)
}

// alias implements Flags.
func (f *callFlags[C]) alias(name string) string { return f.aliases[name] }

func (f *callFlags[C]) Axes(tensor string, rank int) []int {
	if f.axes == nil {
		return nil
	}
	return f.axes(f.given, tensor, rank)
}

func (f *callFlags[C]) Doubts(op bench.Op) []string {
	if c, ok := bench.As[C](op); ok && f.doubts != nil {
		return f.doubts(c, f.set)
	}
	return nil
}

func (f *callFlags[C]) Suites() (list []bench.Suite) {
	for _, s := range pageOf(f.name).suites {
		list = append(list, s.Suite)
	}
	return list
}

func (f *callFlags[C]) Cases(suite string, small bool) (*bench.Suite, []bench.Op, error) {
	suites := pageOf(f.name).suites
	s := suites[slices.IndexFunc(f.Suites(), func(s bench.Suite) bool { return s.Name == suite })]
	typed := f.set.Changed("dtype")
	if typed && !s.anyDType {
		return nil, nil, fmt.Errorf("--dtype %v: suite %s says which formats its cases have", call.Field(f.given, "dtype"), s.Name)
	}
	s.Small = small
	var list []bench.Op
	for _, flags := range s.cases {
		of := f.newFlags()
		of.Add(of.set, true)
		of.set.Parse(strings.Fields(flags)) // it panics
		c := of.call(false)
		if small {
			f.shrink(c, s.by)
		}
		if typed {
			call.Field(c, "dtype").Set(call.Field(f.given, "dtype"))
		}
		f.change(c, false)
		op, err := f.valid(c, f.set, true)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, op)
	}
	return &s.Suite, list, nil
}

// keysOf returns a call as keys: the fields of flags or options, unless derived has them.
func (k *calls[C]) keysOf(c C) (list []bench.Key) {
	derived := map[string]any{}
	if k.derived != nil {
		derived = k.derived(c)
	}
	page := pageOf(k.name)
	for _, name := range strings.Fields(cmp.Or(k.keys, page.parts["keys"])) {
		x, ok := derived[name]
		if !ok {
			of := flag{name: name}
			if i := slices.IndexFunc(page.flags, func(x flag) bool { return x.name == strings.ReplaceAll(name, "_", "-") }); i >= 0 {
				of = page.flags[i]
			}
			x = of.of(c).Interface()
		}
		if t, ok := x.(fmt.Stringer); ok {
			x = t.String()
		}
		list = append(list, bench.Key{Name: name, Value: x})
	}
	return list
}
