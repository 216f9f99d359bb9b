// Package kernels says what the command line must know of each kernel of pipelines:
// its flags, how its sizes follow from the tensors of a file, its tensors, its
// reference. A kernel is a file here and a row of All; flashvk bench NAME and
// flashvk run NAME, with reports and peers, follow from it.
//
//	Kernel   a row of All: names, texts, paths
//	Flags    the flags of one command, and the problem that they, or a file, mean
//	bench.Op a problem
package kernels

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/bench/safetensors"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// A Kernel is one command of flashvk bench and of flashvk run.
type Kernel struct {
	Name  string   // norm
	Title string   // what it computes, in a few words, as in "layer normalization"
	Impls []string // paths, of which auto is the first
	Bench Help
	Run   Help
	New   func() Flags
	How   []string // flags that choose how cases are computed, and not which: a suite takes them
}

// Help is the text of a command: what it does, formulas and shapes, and examples.
type Help struct{ Long, Example string }

// Flags are the flags of one command.
type Flags interface {
	// Add adds the flags that choose what is computed, as in --eps, and with sizes
	// those that give sizes and formats, which otherwise follow from a file.
	Add(f *pflag.FlagSet, sizes bool)
	// FromFlags returns the problem that the flags mean. Sizes that are not given, or
	// not added, suit a GPU, or a CPU device. An error is one of usage.
	FromFlags(cpu bool) (bench.Op, error)
	// FromFile returns the problem of tensors in a file. What does not show in sizes
	// and formats is checked by CheckFile.
	FromFile(tensors Header) (bench.Op, error)
	// Suite returns the cases of the training workload of seed 1, as
	// tools/peers/torch_train.py has them, or small ones of their kind.
	Suite(small bool) []bench.Op
}

// All lists the kernels by name.
func All() []Kernel {
	return []Kernel{matrixMultiply(), perceptron(), perceptrons(), mixtures(), headMixture(), norm(), optimizer()}
}

// A Header is the tensors of a file, without what they hold.
type Header []safetensors.Tensor

// Tensor returns the tensor of that name.
func (h Header) Tensor(name string) (safetensors.Tensor, bool) {
	i := slices.IndexFunc(h, func(t safetensors.Tensor) bool { return t.Name == name })
	if i < 0 {
		return safetensors.Tensor{}, false
	}
	return h[i], true
}

// Floats returns the shape and format of a tensor of floating-point numbers, whose
// axes are named for messages.
func (h Header) Floats(name string, axes ...string) ([]int, dtype.DType, error) {
	t, ok := h.Tensor(name)
	if !ok {
		return nil, 0, fmt.Errorf("tensor %q is missing", name)
	}
	if len(t.Shape) != len(axes) {
		return nil, 0, fmt.Errorf("tensor %q: shape %v has %d axes, want %d: %s", name, t.Shape, len(t.Shape), len(axes), strings.Join(axes, ", "))
	}
	format, err := h.Float(name)
	return t.Shape, format, err
}

// Float returns the format of a tensor of floating-point numbers.
func (h Header) Float(name string) (dtype.DType, error) {
	t, ok := h.Tensor(name)
	if !ok {
		return 0, fmt.Errorf("tensor %q is missing", name)
	}
	for _, format := range dtype.All() {
		if bench.FileDType(format) == t.DType {
			return format, nil
		}
	}
	return 0, fmt.Errorf("tensor %q: dtype %s is not one of F16, BF16, F32", name, t.DType)
}

// CheckFile returns an error unless a file holds exactly the tensors that the
// passes of op read, in their shapes and formats.
func CheckFile(h Header, op bench.Op, backward bool) error {
	var names []string
	wanted := map[string]bench.OpTensor{}
	for _, t := range op.Tensors() {
		switch {
		case t.Role == bench.Upstream && !backward:
			if _, ok := h.Tensor(t.Name); ok {
				return fmt.Errorf("tensor %q is for --backward only", t.Name)
			}
		case t.Role == bench.Input || t.Role == bench.Update || t.Role == bench.Upstream:
			names = append(names, t.Name)
			wanted[t.Name] = t
		}
	}
	for _, t := range h {
		want, ok := wanted[t.Name]
		if !ok {
			return fmt.Errorf("tensor %q is not one of %s", t.Name, strings.Join(names, ", "))
		}
		if format := bench.FileDType(want.DType); t.DType != format {
			return fmt.Errorf("tensor %q: dtype %s, want %s", t.Name, t.DType, format)
		}
		if !slices.Equal(t.Shape, want.Shape) {
			return fmt.Errorf("tensor %q: shape %v, want %v", t.Name, t.Shape, want.Shape)
		}
	}
	for _, name := range names {
		if _, ok := h.Tensor(name); !ok {
			return fmt.Errorf("tensor %q is missing", name)
		}
	}
	return nil
}

// DTypeVar adds a flag whose value is the name of a floating-point format.
func DTypeVar(f *pflag.FlagSet, p *dtype.DType, name, usage string) {
	f.Var(dtypeValue{p}, name, usage)
}

type dtypeValue struct{ target *dtype.DType }

// Set implements pflag.Value.
func (v dtypeValue) Set(text string) error {
	t, err := dtype.Parse(text)
	if err != nil {
		return errors.New("not one of float16, bfloat16, float32")
	}
	*v.target = t
	return nil
}

// String implements pflag.Value. The usage texts say the defaults.
func (v dtypeValue) String() string { return "" }

// Type implements pflag.Value.
func (v dtypeValue) Type() string { return "TYPE" }

// keepVar adds --keep, whose value is the name of what a kernel can keep.
func keepVar(f *pflag.FlagSet, p *mlp.Keep, of []mlp.Keep, usage string) {
	f.Var(keepValue{p, of}, "keep", usage)
}

type keepValue struct {
	target *mlp.Keep
	of     []mlp.Keep
}

// Set implements pflag.Value.
func (v keepValue) Set(text string) error {
	k, err := mlp.ParseKeep(text)
	if err != nil || !slices.Contains(v.of, k) {
		names := make([]string, len(v.of))
		for i, k := range v.of {
			names[i] = k.String()
		}
		return errors.New("not one of " + strings.Join(names, ", "))
	}
	*v.target = k
	return nil
}

// String implements pflag.Value. The usage texts say the default.
func (v keepValue) String() string { return "" }

// Type implements pflag.Value.
func (v keepValue) Type() string { return "WHAT" }

// A sizeFlag is a flag of a size of a problem.
type sizeFlag struct {
	name     string
	to, from *int
}

// setGiven sets the sizes whose flags are given. Command run has none: its --in is a
// file.
func setGiven(set *pflag.FlagSet, sizes []sizeFlag) {
	for _, x := range sizes {
		if f := set.Lookup(x.name); f != nil && f.Changed && f.Value.Type() == "int" {
			*x.to = *x.from
		}
	}
}
