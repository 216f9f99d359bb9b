// Package gemm multiplies matrices on a Vulkan device, with an epilogue.
//
//	v = Alpha * op(A) * op(B) + Beta * C
//	X = v                    SiLUKeep
//	v = silu(v)              SiLU and SiLUKeep
//	v = v * silu'(X)         TimesDSiLU and TimesDSiLUKeep
//	S = silu(X)              TimesDSiLUKeep
//	C = v + R                Residual
//
// One call, [Multiply], picks the fastest path that the device and the problem
// allow; Options.Impl forces one:
//
//	path     needs                                operands in      file
//	coopmat  VK_KHR_cooperative_matrix            shared memory    matrix.go
//	scalar   Vulkan 1.2 compute                   shared memory    scalar.go
//
// Where k is long, blocks of C that are too few to fill the device, or its last round of
// workgroups, are divided among workgroups that have a part of k each (splits.go), and a
// second kernel adds up what they found, always in the same order (combine.go). Operands
// whose rows start anywhere are copied where that pays (pack.go), and op(B), where it meets many
// rows of op(A), into the order in which invocations hold its elements (fragments.go).
//
// Path coopmat multiplies float32 operands in two parts of float16, scaled row by row of
// op(A) and column by column of op(B), three products for one (parts.go). Its errors are
// those of float32: a term a*b is off by 2^-21 of it at most and 2^-24 on average, and long
// sums are off by less than those of a plain program. What differs: an element below 2^-27
// of the largest of its row or column is right to 2^-50 of that largest, which shows where
// the largest meets a zero; a row or column with an Inf or NaN gives NaN; subnormal numbers
// may count as 0. Path scalar is plain arithmetic, and what Auto takes for small float32
// products and for those whose parts do not fit into a buffer.
//
// [MultiplyGroup] computes products of different sizes in one launch (group.go), and
// [MultiplySteps] returns what Multiply records, for products that run side by side.
//
// [Narrow] multiplies what silu makes of a product by matrices of a few columns, and writes
// only the result, or the product, too (narrow.go); [NarrowBackward] makes gradients of it, of
// the same product (narrow_bwd.go), and [NarrowDSiLU] of a product that was written
// (narrow_dsilu.go). [Mixture] makes mixtures of normal distributions of such results
// (mixture.go), and [Pair] multiplies by a matrix of some hundred columns (pair.go). [Pad]
// copies matrices to rows that are aligned (pack.go).
//
// Tensors are views of device buffers, (batch, rows, columns) or without batch (rows,
// columns), whose last axis is contiguous. All paths are deterministic: the same call
// on the same device gives the same bits.
//
// Functions are safe for concurrent use, as far as what they are given is: a vk.Cmd
// belongs to one goroutine.
package gemm

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/steps"
)

// A Problem holds the sizes, formats and epilogue of one call.
type Problem = problem.Problem

// An Activation is what an epilogue does to the sum.
type Activation = problem.Activation

// The activations, described in package problem.
const (
	Identity       = problem.Identity
	SiLU           = problem.SiLU
	SiLUKeep       = problem.SiLUKeep
	TimesDSiLU     = problem.TimesDSiLU
	TimesDSiLUKeep = problem.TimesDSiLUKeep
)

// ParseActivation accepts the names of activations.
func ParseActivation(name string) (Activation, error) { return problem.ParseActivation(name) }

// ParseTransposes accepts nn, nt, tn and tt.
func ParseTransposes(s string) (transA, transB bool, err error) { return problem.ParseTransposes(s) }

// ErrUnsupported is wrapped by errors about calls that are valid, but that no
// kernel on the device handles.
var ErrUnsupported = vk.ErrUnsupported

// An Impl is a path: one implementation.
type Impl uint8

// The paths. Auto takes the first of the others that supports the problem, on a CPU device
// Scalar before CoopMat.
const (
	Auto Impl = iota
	CoopMat
	Scalar
)

// Impls lists the paths in the order in which Auto tries them.
func Impls() []Impl { return []Impl{CoopMat, Scalar} }

// String returns the name used by --impl.
func (i Impl) String() string {
	switch i {
	case Auto:
		return "auto"
	case CoopMat:
		return "coopmat"
	case Scalar:
		return "scalar"
	}
	return fmt.Sprintf("Impl(%d)", uint8(i))
}

// ParseImpl accepts the names that String returns.
func ParseImpl(name string) (Impl, error) {
	for _, i := range append(Impls(), Auto) {
		if name == i.String() {
			return i, nil
		}
	}
	return 0, fmt.Errorf("gemm: impl %q is not one of auto, coopmat, scalar", name)
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Impl forces a path.
	Impl Impl
	// Config forces a configuration instead of the tuning table's; it must be
	// feasible. It is for tuning and tests.
	Config *Config
	// Residual is R, X what the activation writes (SiLUKeep) or reads (the others), and
	// S what it writes, for problems that have them.
	Residual, X, S vk.Tensor
	// AlignedA and AlignedB promise that rows of A and B start at multiples of 8 elements,
	// though they may be as long as they like: Workspace sets no memory aside for copies.
	AlignedA, AlignedB bool
	// PadB lets b be a corner of op(B), which is zero elsewhere: fewer rows than k, fewer
	// columns than n. Tensors of a chain of products can so have rows of whole lines of
	// memory, where kernels have no edges. Only configurations with fragments can. An
	// infinity in op(A) meets the zeros, too: NaN.
	PadB bool
	// Workspace is memory for partial sums and copies, Workspace bytes of it, that nothing
	// else uses until the commands have completed: a second call in the same Cmd comes
	// after a Barrier. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
	// WorkspaceOffset is where that memory begins, in bytes: a multiple of 16.
	WorkspaceOffset int64
}

// Multiply computes
//
//	v = Alpha * op(A) * op(B) + Beta * C
//	C = epilogue(v)
//
// for every product of the batch, as the documentation of Problem says.
//
// C, Residual, X and S are (batch, m, n) of p.Out. A is (batch, m, k), with p.TransA
// (batch, k, m), and B (batch, k, n), with p.TransB (batch, n, k), of p.DType. All
// may have any strides with a contiguous last axis, also a batch stride of 0 for A, B
// and Residual; where the batch is 1, that axis may be missing. Strides and offsets of A
// and B that are multiples of 8 elements, and of 4 for the rest, are fastest. Outputs,
// which are C, S and an X that is written, have memory of their own, but C may be
// Residual or an X that is read, element by element, and S such an X.
//
// Multiply records into c and returns; C and X are valid once c has completed. The
// inputs must be written and visible by then: after another kernel of the same Cmd, a
// c.Barrier() comes before Multiply, and one after it before C is read.
//
// It returns an error that wraps ErrUnsupported if no path on the device handles p,
// and an error naming the argument if a tensor does not fit p.
func Multiply(c *vk.Cmd, dst, a, b vk.Tensor, p Problem, opt Options) (err error) {
	defer c.Keep(&err)
	s, err := MultiplySteps(c, dst, a, b, p, opt)
	if err != nil {
		return err
	}
	return s.Record(c)
}

// Steps are what a call records, for a caller who has kernels to run beside it.
type Steps struct {
	Copies  steps.List // of operands, a step or none; with AlignedA and AlignedB it does not read those
	Product steps.List // the rest, after a Barrier
}

// Record records all.
func (s *Steps) Record(c *vk.Cmd) error { return slices.Concat(s.Copies, s.Product).Record(c) }

// MultiplySteps returns what Multiply records. It takes memory of c, but records nothing.
func MultiplySteps(c *vk.Cmd, dst, a, b vk.Tensor, p Problem, opt Options) (s Steps, err error) {
	config, err := Choose(c.Device().Caps(), p, opt)
	if err != nil {
		return s, err
	}
	if opt.PadB && !config.Fragments {
		return s, unsupported("%v: a part of op(B) is given, and it has no fragments", config)
	}
	args, err := newArguments("gemm", dst, a, b, p, &opt)
	if err != nil {
		return s, err
	}
	config = config.fit(&p)
	plan := config.plan(c.Device().Caps(), &p, &opt)
	memory, at, err := plan.workspace(c, &opt, &args)
	if err != nil {
		return s, err
	}
	args.narrow()
	if plan.parts {
		s.Product, args, p, config = plan.split(args, p, config, memory, at)
	} else {
		s.Copies = plan.pack(&args, memory, at)
	}
	if config.Fragments {
		step := plan.fragment(c.Device().Caps(), &args, p, memory, at)
		if opt.AlignedB { // b may be what the kernels before make
			s.Product = steps.List{step}
		} else {
			s.Copies = steps.Together(s.Copies, steps.List{step})
		}
	}
	s.Product = append(s.Product, multiplier(multiply).steps(args, p, config, memory, at+plan.partials)...)
	return s, nil
}

// multiply records the one kernel of config.
func multiply(c *vk.Cmd, args arguments, p Problem, config Config) error {
	if config.Impl == Scalar {
		return multiplyScalar(c, args, p, config)
	}
	return multiplyMatrix(c, args, p, config)
}

// Supports returns nil if path impl can compute p on a device, and otherwise an
// error that wraps ErrUnsupported and says why not.
func Supports(caps *vk.Caps, impl Impl, p Problem) error {
	_, err := Choose(caps, p, Options{Impl: impl})
	return err
}
