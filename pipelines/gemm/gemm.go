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
// Sums are float32 in all formats. [Forward] takes the fastest path that the device and the
// problem allow. Options.Impl forces one:
//
//	path     needs                                operands in
//	coopmat  VK_KHR_cooperative_matrix            shared memory
//	scalar   Vulkan 1.2 compute                   shared memory
//
// A small C has too few blocks to fill the device. Where k is long, several workgroups then share
// a block, each with a part of k (split-K), and a second kernel adds up their partial sums in a
// fixed order. Where C has several waves of workgroups, only the blocks of the last are divided.
// Operands whose rows are not aligned are copied where that pays. An op(B) that meets many rows
// of op(A) is packed: copied into the order in which invocations hold its elements.
//
// Path coopmat computes float32 products on float16 matrices. Each operand is the sum of a high
// and a low float16, scaled row by row of op(A) and column by column of op(B), and three products
// make one. The errors are those of float32: a term a*b is off by 2^-21 of it at most and by
// 2^-24 on average, and long sums are closer than those of a plain float32 program. Three things
// differ from plain arithmetic. An element below 2^-27 of the largest of its row or column has an
// error of 2^-50 of that largest. This shows where the largest meets a zero. A row or column with
// an Inf or a NaN gives NaN. Subnormal numbers may count as 0. Path scalar is plain arithmetic.
// Auto takes it for small float32 products, and for those whose high and low parts do not fit
// into a buffer.
//
// [ForwardGroup] computes products of different sizes in one launch.
//
// There is no Backward, because gradients are products, too. With dV the gradient by v, and Alpha
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
// Package mlp has two products in a row, with their gradients.
//
// Tensors are views of device buffers: (batch, rows, columns) or, without batch, (rows, columns).
// The last axis is contiguous. All paths are deterministic: the same call on the same device
// gives the same bits.
//
// Several goroutines may call the functions. A vk.Cmd belongs to one of them.
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
	// Config forces a configuration instead of the tuning table's. It must be feasible, and is
	// for tuning and tests. ForwardGroup takes none that copies operands or divides k.
	Config *Config
	// Tuning is what was measured on the device; its rows come before those of the built-in
	// table. Nil is none. kit.LoadTuningFile reads one. ForwardGroup ignores it: no row is for a
	// list.
	Tuning *kit.Tuning
	// Workspace is memory for the call, at least as many bytes as the function Workspace says.
	// Its content is lost. Calls that share it run one after the other. Nil takes memory of the
	// Cmd.
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
// for every product of the batch. The package documentation has the epilogue.
//
// C, Residual, X and S are (batch, m, n) of p.OutDType(). A is (batch, m, k), with p.TransA
// (batch, k, m). B is (batch, k, n), with p.TransB (batch, n, k). Both are of p.DType. A batch of
// 1 may lack that axis. All tensors may have any strides with a contiguous last axis; the batch
// stride of A, B and Residual may be 0. Strides and offsets are fastest as multiples of 8
// elements for A and B and of 4 for the rest.
//
// The outputs are C, S, and X with SiLUKeep. Each has memory of its own, with two exceptions
// where the elements coincide: C may be Residual or an X that is read, and S may be such an X.
//
// Forward records into c and returns; the outputs are valid once c has completed.
//
// It returns an error that wraps vk.ErrUnsupported if no path on the device handles p, and an
// error naming the argument if a tensor does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) error {
	return engine.Multiply(c, engine.Tensors(t), p.internal(), o.engine())
}
