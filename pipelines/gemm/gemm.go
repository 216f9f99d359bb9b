// Package gemm multiplies matrices on a Vulkan device, with an epilogue.
//
//	v = Alpha * op(A) * op(B) + Beta * C
//	X = v                    SiLUKeep
//	v = silu(v)              SiLU and SiLUKeep
//	v = v * silu'(X)         TimesDSiLU and TimesDSiLUKeep
//	S = silu(X)              TimesDSiLUKeep
//	C = v + Residual         Residual
//
//	tensor               shape          format
//	op(A)                (batch, m, k)  DType    A itself is (batch, k, m) with TransA
//	op(B)                (batch, k, n)  DType    B itself is (batch, n, k) with TransB
//	C, Residual, X, S    (batch, m, n)  Out
//
// Sums are float32 whatever the formats. One call, [Forward], picks the fastest path that the
// device and the problem allow; Options.Impl forces one:
//
//	path     needs                                operands in
//	coopmat  VK_KHR_cooperative_matrix            shared memory
//	scalar   Vulkan 1.2 compute                   shared memory
//
// A few blocks of C do not fill the device. Where k is long, several workgroups share each of these
// blocks, or those of the last round, with a part of k each, and a second kernel adds up what they
// found, always in the same order. Operands whose rows start anywhere are copied where that pays.
// An op(B) that meets many rows of op(A) is copied into the order in which invocations hold its
// elements.
//
// Path coopmat multiplies float32 operands in two parts of float16, scaled row by row of
// op(A) and column by column of op(B), three products for one. Its errors are
// those of float32: a term a*b is off by 2^-21 of it at most and 2^-24 on average, and long
// sums are off by less than those of a plain program. What differs: an element below 2^-27
// of the largest of its row or column is right to 2^-50 of that largest, which shows where
// the largest meets a zero; a row or column with an Inf or NaN gives NaN; subnormal numbers
// may count as 0. Path scalar is plain arithmetic, and what Auto takes for small float32
// products and for those whose parts do not fit into a buffer.
//
// [ForwardGroup] computes products of different sizes in one launch.
//
// There is no Backward: gradients are products, too. With dV the gradient by v, and Alpha
// that of the product,
//
//	dV = dC                                      Identity
//	dV = dC ∘ silu'(X)                           SiLUKeep: TimesDSiLU in the product that makes dC
//	dA = Alpha * dV * op(B)ᵀ                     M, N, K are m, k, n: A is dV, B is B; TransB is the opposite
//	dA = Alpha * op(B) * dVᵀ                     TransA: they are k, m, n: A is B, with TransA as TransB was; B is dV, TransB
//	dB = Alpha * op(A)ᵀ * dV                     M, N, K are k, n, m: A is A, TransA is the opposite; B is dV
//	dB = Alpha * dVᵀ * op(A)                     TransB: they are n, k, m: A is dV, TransA; B is A, with TransB as TransA was
//	dC = Beta * dV, dResidual = dC               by what C held before, and by Residual
//
// Products that follow one another, with their gradients, are package mlp.
//
// Tensors are views of device buffers, (batch, rows, columns) or without batch (rows,
// columns), whose last axis is contiguous. All paths are deterministic: the same call
// on the same device gives the same bits.
//
// Several goroutines may call the functions; a vk.Cmd belongs to one of them.
package gemm

import (
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Tensors are what Forward reads and writes.
type Tensors struct {
	A, B     vk.Tensor
	C        vk.Tensor // written; read with Problem.Beta
	Residual vk.Tensor // exactly if Problem.Residual
	X        vk.Tensor // exactly with SiLUKeep, which writes it, TimesDSiLU and TimesDSiLUKeep
	S        vk.Tensor // written; exactly with TimesDSiLUKeep
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Impl forces a path.
	Impl Impl
	// Config forces a configuration instead of the tuning table's; it must be
	// feasible. It is for tuning and tests. ForwardGroup takes none with copies or splits.
	Config *Config
	// Tuning is what was measured on the device; its rows come before those of the built-in
	// table. Nil is none. kit.LoadTuningFile reads one. ForwardGroup has no rows.
	Tuning *kit.Tuning
	// Workspace is memory, Workspace bytes of it, whose content is lost. Calls that share it
	// run one after the other. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
}

// engine returns the options as the engine wants them.
func (o Options) engine() engine.Options {
	return engine.Options{Impl: o.Impl, Config: (*engine.Config)(o.Config), Tuning: o.Tuning, Workspace: o.Workspace}
}

// Forward computes
//
//	v = Alpha * op(A) * op(B) + Beta * C
//	C = epilogue(v)
//
// for every product of the batch, as the package documentation says.
//
// C, Residual, X and S are (batch, m, n) of p.OutDType(). A is (batch, m, k), with p.TransA
// (batch, k, m), and B (batch, k, n), with p.TransB (batch, n, k), of p.DType. All
// may have any strides with a contiguous last axis, also a batch stride of 0 for A, B
// and Residual; where the batch is 1, that axis may be missing. Strides and offsets of A
// and B that are multiples of 8 elements, and of 4 for the rest, are fastest. Outputs,
// which are C, S and an X that is written, have memory of their own, but C may be
// Residual or an X that is read, element by element, and S such an X.
//
// Forward records into c and returns; C, X and S are valid once c has completed.
//
// It returns an error that wraps vk.ErrUnsupported if no path on the device handles p,
// and an error naming the argument if a tensor does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) error {
	return engine.Multiply(c, engine.Tensors(t), p.internal(), o.engine())
}
