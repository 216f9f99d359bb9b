package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// An Op is one problem of one kernel, with what is needed to measure it (Run) and to compute it
// for a file (flashvk run). Package internal/bench/kernels has them.
//
// The pass in its methods is Forward or Backward, and in MaxCalls also Both. An Op may have more
// methods, or what its method Of returns:
//
//	MaxCalls(impl string, p Pass) int  limits the calls of a batch; 0 is no limit
//	Params() string                    names benchmarks, instead of its keys
//	Takes(p Pass) error                returns why no path takes a pass
//	Warning(ctx) (string, error)       warns of the result of flashvk run
//	Amounts() []Amount                 says what reports count beside operations and bytes
type Op interface {
	// Name is the name of the kernel, as in flashvk bench NAME. Results add _fwd or _bwd.
	Name() string
	// Describe returns the problem in words. Keys returns it as keys of benchmarks and columns of
	// CSV and JSON, in their order.
	Describe() string
	Keys() []Key
	// Cost returns the operations of a pass and the least traffic, in bytes.
	Cost(p Pass) (flops, bytes float64)
	// Tensors lists every tensor of the problem, by the names of its formulas and files.
	Tensors() []call.Tensor
	// Choose returns what runs on a device for a path, or an error that wraps vk.ErrUnsupported
	// and says why nothing does. Every kernel has the path "auto".
	Choose(caps *vk.Caps, impl string, p Pass) (kit.Plan, error)
	// Bind returns what records a call on contiguous tensors, by name. Workspace is as large as the
	// plan says, nil for none.
	Bind(d *vk.Device, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p Pass) (call.Recording, error)
	// Reference returns what a pass should write, by the names of Tensors, from the tensors that it
	// does not write: row-major, rounded to their formats.
	Reference(t map[string][]float32, p Pass) (call.Outputs, error)
	// Close frees what Bind and its recordings made.
	Close()
	// Note says of dispatches what they do not say themselves.
	Note(caps *vk.Caps, impl string, p Pass, list []DispatchProfile) error
	// Use returns the Op with the rows of tuning, which may be nil.
	Use(tuning *kit.Tuning) Op
	// Tunables returns what can be tuned of a pass: the pass, or the products that it consists of
	// on the device. An error says what cannot be tuned. Caps are nil where there is no device;
	// the error is the same then.
	Tunables(caps *vk.Caps, p Pass) ([]Tunable, error)
}

// A Key is a word that describes a problem, such as rows=4096.
type Key struct {
	Name  string
	Value any // string, int, bool or float64
}

// Reads reports whether a pass reads what was in a tensor of a role before. Both reads what Forward
// does, and Upstream.
func (p Pass) Reads(r call.Role) bool {
	return r.Reads(p.Parts()[0].Kit()) || p == Both && r == call.Upstream
}

// Writes reports whether a pass writes a tensor of a role.
func (p Pass) Writes(r call.Role) bool {
	return slices.ContainsFunc(p.Parts(), func(part Pass) bool { return r.Writes(part.Kit()) })
}

// As returns an Op, or the call that its method Of returns, as what has further methods.
func As[T any](op Op) (x T, ok bool) {
	if x, ok = op.(T); ok {
		return x, ok
	}
	if of, is := op.(interface{ Of() any }); is {
		x, ok = of.Of().(T)
	}
	return x, ok
}

// Parts returns the passes that p consists of.
func (p Pass) Parts() []Pass {
	if p == Both {
		return []Pass{Forward, Backward}
	}
	return []Pass{p}
}

// A Subject is what a result is about: how reports name and count it.
type Subject struct {
	kernel    string // as Result.Kernel
	benchmark string // its name in the Go benchmark format
	title     string // in words
	pass      Pass
	params    string  // key=value/key=value, of the benchmark's name
	keys      []Key   // the problem, for CSV and JSON
	flops     float64 // of a call
	bytes     float64 // likewise: the least traffic
	amounts   []Amount
	wall      bool // times are the wall clock's, of a call that nobody checks here
}

// An Amount is a number of things that a call handles. Reports show it per second.
type Amount struct {
	Name string // of the column, as in tokens
	Key  string // before _per_s, as in token
	Unit string // as in token; of B, bytes of memory, reports also show the share of Report.Copy
	N    float64
}

// NewSubject returns the subject of results of a pass of op.
func NewSubject(op Op, p Pass) *Subject {
	kernel := op.Name() + p.suffix()
	s := &Subject{kernel: kernel, benchmark: camel(kernel), title: Title(op, p), pass: p, keys: op.Keys()}
	s.params = joined(s.keys, "/")
	if named, ok := As[interface{ Params() string }](op); ok {
		s.params = named.Params()
	}
	if more, ok := As[interface{ Amounts() []Amount }](op); ok {
		s.amounts = more.Amounts()
	}
	for _, part := range p.Parts() {
		flops, bytes := op.Cost(part)
		s.flops, s.bytes = s.flops+flops, s.bytes+bytes
	}
	return s
}

// NewTimed returns the subject of results of calls that the caller times by the wall clock.
func NewTimed(kernel string, keys []Key, flops, bytes float64, amounts ...Amount) *Subject {
	return &Subject{kernel: kernel, benchmark: camel(kernel), title: joined(keys, ", "), params: joined(keys, "/"), keys: keys,
		flops: flops, bytes: bytes, amounts: amounts, wall: true}
}

// Result returns the result of an implementation.
func (s *Subject) Result(impl string, t Timing) Result {
	return Result{Kernel: s.kernel, Impl: impl, Subject: s, Status: StatusOK, Timing: t}
}

// unsupported returns the result of a path that is not there, or not yet known to be.
func (s *Subject) unsupported(impl, reason string) Result {
	return Result{Kernel: s.kernel, Impl: impl, Subject: s, Status: StatusUnsupported, Reason: reason}
}

// joined returns keys as words, such as rows=4096.
func joined(keys []Key, by string) string {
	var words []string
	for _, k := range keys {
		words = append(words, fmt.Sprintf("%s=%v", k.Name, k.Value))
	}
	return strings.Join(words, by)
}

// Title returns a pass of op in words.
func Title(op Op, p Pass) string { return fmt.Sprintf("%s %v, %s", op.Name(), p, op.Describe()) }

// key returns the value of a key, nil if there is none.
func (s *Subject) key(name string) any {
	for _, k := range s.keys {
		if k.Name == name {
			return k.Value
		}
	}
	return nil
}

// camel makes NormFwd of norm_fwd.
func camel(name string) string {
	var b strings.Builder
	for _, word := range strings.Split(name, "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// normalChunk numbers share one random generator. The numbers of a seed depend on it.
const normalChunk = 1 << 16

// Normal returns n numbers of the standard normal distribution, rounded to t. They depend on the
// seed and on t only, not on the number of processors. Real inputs look like this. Zeros or
// repeated values would let a GPU run at clocks and powers that it never reaches on real data.
func Normal(t dtype.DType, n int, seed uint64) []float32 {
	x := make([]float32, n)
	chunks := (n + normalChunk - 1) / normalChunk
	parallel.For(chunks, func(i int) {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		part := x[i*normalChunk : min((i+1)*normalChunk, n)]
		for j := range part {
			part[j] = t.Round(float32(rng.NormFloat64()))
		}
	})
	return x
}

// Drawn returns values of a tensor to measure with.
func Drawn(t *call.Tensor, seed uint64) []float32 {
	if t.Values != nil {
		return t.Values()
	}
	format := t.DType
	if t.Draw != nil {
		format = dtype.Float32 // integers of many values are rounded once
	}
	x, scale := Normal(format, call.Product(t.Shape), seed), float32(call.OrOne(t.Scale))
	for j := range x {
		if t.Draw != nil {
			x[j] = t.DType.Round(float32(t.Draw(float64(x[j]))))
		} else if scale != 1 {
			x[j] = t.DType.Round(scale * x[j])
		}
	}
	return x
}

// A Pass says what of a kernel is computed. The zero value is Forward.
type Pass uint8

const (
	Forward  Pass = iota
	Backward      // the gradients, from what a forward pass left
	Both          // one after the other
)

// Kit returns the pass of package kit. For both passes it is the backward pass, which may need a
// workspace.
func (p Pass) Kit() kit.Pass {
	if p == Forward {
		return kit.Forward
	}
	return kit.Backward
}

// suffix returns the ending of the names of kernels in results.
func (p Pass) suffix() string { return [...]string{"_fwd", "_bwd", "_fwd_bwd"}[p] }

// String names the pass in words.
func (p Pass) String() string { return [...]string{"forward", "backward", "forward and backward"}[p] }

// Progress is called when a unit of work is done. What describes the next one;
// done counts up to total. Nil: nobody asks.
type Progress func(done, total int, what string)

// Steps returns the function that each of total steps calls before it begins.
func (p Progress) Steps(total int) func(what string) {
	done := 0
	return func(what string) {
		if p != nil {
			p(done, total, what)
		}
		done++
	}
}

// Part returns the progress of part i of n.
func (p Progress) Part(i, n int, name string) Progress {
	return func(done, total int, what string) {
		const units = 1000
		if p != nil {
			p(i*units+done*units/max(total, 1), n*units, name+what)
		}
	}
}
