// Package kernels says what the command line must know of each kernel: its flags, and how its
// sizes follow from the tensors of a file. Package call has its tensors and its reference. A kernel is
// a row here, in rows.go or a file of its own, and a section of commands.txt, which has texts, flags
// and suites; flashvk bench NAME, run, profile, sweep and the other commands, with reports and peers,
// follow from them.
//
//	Kernel   a row of All: names, texts, paths
//	Flags    the flags of one command, and the problem that they, or a file, mean
//	bench.Op a problem
package kernels

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
)

// A Kernel is one command of flashvk bench, run, profile and sweep.
type Kernel struct {
	Name     string            // norm
	Title    string            // what the kernel computes, in a few words, as in "layer normalization"
	Parts    map[string]string // of its section of commands.txt
	Impls    []string          // paths, of which auto is the first
	New      func() Flags
	How      []string // flags that choose how a case is computed, not which case: a suite takes them
	Tiny     []string // defaults that make a problem take no time, as in batch=1; nil: the defaults of a CPU device
	Backward bool     // there are gradients
	Tune     *Tune    // nil: the kernel has no configurations to choose from; the part fixed says why
	AllPaths bool     // bench measures all paths in suites, and without flags
}

// Tune says how to look for configurations.
type Tune struct {
	Impls  []string                // paths, unless they are given
	Unless func(cpu bool) []string // flags that are set unless they are given, as in headdim=64; nil: none
}

// Example returns the examples of a command, after one without flags for what needs none.
func (k *Kernel) Example(command string) string {
	var lines []string
	if command == "bench" || command == "tune" {
		lines = append(lines, fmt.Sprintf("  flashvk %s %s", command, k.Name))
	}
	for x := range strings.SplitSeq(k.Parts["examples"], "\n") {
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
	// Op returns the problem that the flags mean. The default sizes suit a GPU, or a CPU device
	// if cpu is set. Errors are errors of usage.
	Op(cpu bool) (bench.Op, error)
	// Suites lists suites. Cases returns the cases of one suite, or smaller cases of the same kind,
	// computed as the flags of Kernel.How say; tools/peers/torch_train.py has the suite training,
	// too.
	Suites() []bench.Suite
	Cases(suite string, small bool) (*bench.Suite, []bench.Op, error)
	// Axes returns the permutation of the axes of a tensor of that rank: axis i of the kernel's
	// tensor is axis Axes[i] in files. It is its own inverse. Nil: files have the kernel's order.
	Axes(tensor string, rank int) []int
	// Doubts returns reasons why a file that was read as op may mean another problem.
	Doubts(op bench.Op) []string

	read(s *Source) (bench.Op, error) // the problem of a file
	alias(name string) string         // another program's name of a tensor in files; "": none
}

// Find returns the kernel of that name.
func Find(name string) (k Kernel, ok bool) {
	for _, k := range All() {
		if k.Name == name {
			return k, true
		}
	}
	return k, false
}
