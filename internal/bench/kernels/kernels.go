// Package kernels says what the command line must know of each kernel: its flags, and how its
// sizes follow from the tensors of a file. Package call has its tensors and its reference. A kernel is
// a file here and a row of All; flashvk bench NAME, run, profile, sweep and the other commands,
// with reports and peers, follow from it.
//
//	Kernel   a row of All: names, texts, paths
//	Flags    the flags of one command, and the problem that they, or a file, mean
//	bench.Op a problem
package kernels

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/safetensors"
)

// A Kernel is one command of flashvk bench, run, profile and sweep.
type Kernel struct {
	Name     string   // norm
	Title    string   // what the kernel computes, in a few words, as in "layer normalization"
	Impls    []string // paths, of which auto is the first
	Formulas string   // what the kernel computes, in lines
	About    string   // more help of bench
	Files    string   // the tensors of run
	Examples []string // of commands, without flashvk and the kernel's name
	New      func() Flags
	How      []string // flags that choose how a case is computed, not which case: a suite takes them
	Tiny     []string // defaults that make a problem take no time, as in batch=1; nil: the defaults of a CPU device
	Tune     *Tune    // nil: the kernel has no configurations to choose from
	Fixed    string   // why, if there are none
	AllPaths bool     // bench measures all paths in suites, and without flags
}

// Tune says how to look for configurations.
type Tune struct {
	About  string                  // more help of tune
	Impls  []string                // paths, unless they are given
	Unless func(cpu bool) []string // flags that are set unless they are given, as in headdim=64; nil: none
}

// Example returns the examples of a command, after one without flags for what needs none.
func (k *Kernel) Example(command string) string {
	var lines []string
	if command == "bench" || command == "tune" {
		lines = append(lines, fmt.Sprintf("  flashvk %s %s", command, k.Name))
	}
	for _, x := range k.Examples {
		if flags, ok := strings.CutPrefix(x, command+" "); ok {
			lines = append(lines, fmt.Sprintf("  flashvk %s %s %s", command, k.Name, flags))
		}
	}
	return strings.Join(lines, "\n")
}

// Flags are the flags of one command.
type Flags interface {
	// Add adds the flags that choose what is computed, as --eps does. With sizes it also adds
	// the flags of sizes and formats. Without, these follow from a file.
	Add(f *pflag.FlagSet, sizes bool)
	// FromFlags returns the problem that the flags mean. The default sizes suit a GPU, or a CPU
	// device if cpu is set. Errors are those of usage.
	FromFlags(cpu bool) (bench.Op, error)
	// FromFile returns the problem of tensors in a file. CheckFile checks what FromFile does
	// not see in sizes and formats. A FlagError is one of usage.
	FromFile(in File) (bench.Op, error)
	// Suite returns the cases of the training workload, as tools/peers/torch_train.py has them,
	// or smaller cases of the same kind.
	Suite(small bool) []bench.Op
}

// Suited is Flags with more suites than that of training, which is the method Suite.
type Suited interface {
	Suites() []bench.Suite
	// Cases returns the cases of a suite, computed as the flags of Kernel.How say.
	Cases(s bench.Suite, small bool) (*bench.Suite, []bench.Op, error)
}

// Multiple is Flags that may mean several problems at once.
type Multiple interface {
	// Several is FromFlags for all the problems.
	Several(cpu bool) ([]bench.Op, error)
}

// Suites returns the suites of flags.
func Suites(f Flags) []bench.Suite {
	if s, ok := f.(Suited); ok {
		return s.Suites()
	}
	return []bench.Suite{{Name: bench.TrainingSuite, About: "the shapes of a training step"}}
}

// Cases returns a suite of the flags, and its cases.
func Cases(f Flags, s bench.Suite, small bool) (*bench.Suite, []bench.Op, error) {
	if suited, ok := f.(Suited); ok {
		return suited.Cases(s, small)
	}
	if small {
		s = s.Small()
	}
	return &s, f.Suite(small), nil
}

// Find returns the kernel of that name.
func Find(name string) (Kernel, bool) {
	all := All()
	i := slices.IndexFunc(all, func(k Kernel) bool { return k.Name == name })
	if i < 0 {
		return Kernel{}, false
	}
	return all[i], true
}

// A FlagError says that flags are wrong for a file.
type FlagError struct{ error }

// A File is what is read of a safetensors file.
type File interface {
	Tensors() []safetensors.Tensor
	Tensor(name string) (safetensors.Tensor, bool)
	ReadAt(t safetensors.Tensor, raw []byte, at int64) error
}

// All lists the kernels.
func All() []Kernel {
	return []Kernel{softmaxAttention(), decoder(), matrixMultiply(), perceptron(), perceptrons(), mixtures(), headMixture(), normalization(), optimizer()}
}

// A Header is the tensors of a file, without what they hold.
type Header []safetensors.Tensor

// Tensors implements File.
func (h Header) Tensors() []safetensors.Tensor { return h }

// ReadAt implements File.
func (h Header) ReadAt(t safetensors.Tensor, _ []byte, _ int64) error {
	return fmt.Errorf("tensor %q: only the header of its file is known", t.Name)
}

// Tensor returns the tensor of that name.
func (h Header) Tensor(name string) (safetensors.Tensor, bool) {
	i := slices.IndexFunc(h, func(t safetensors.Tensor) bool { return t.Name == name })
	if i < 0 {
		return safetensors.Tensor{}, false
	}
	return h[i], true
}

// Floats returns the shape and format of a tensor of floating-point numbers. Messages name its axes
// as given.
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
	wanted := map[string]call.Tensor{}
	for _, t := range op.Tensors() {
		switch {
		case t.Role == call.Upstream && !backward:
			if _, ok := h.Tensor(t.Name); ok {
				return fmt.Errorf("tensor %q is for --backward only", t.Name)
			}
		case t.Role == call.Input || t.Role == call.Update || t.Role == call.Upstream:
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
		if _, ok := h.Tensor(name); !ok && wanted[name].Role == call.Upstream {
			return fmt.Errorf("tensor %q is missing: --backward needs it", name)
		} else if !ok {
			return fmt.Errorf("tensor %q is missing", name)
		}
	}
	return nil
}
