// Package xent computes the cross entropy of a language model's last layer, and its gradients, without
// ever having all logits in memory.
//
//	x[t,:]  = h[t,:] * Wᵀ                                   the logits of a token
//	lse[t]  = log(sum over v of exp(x[t,v]))
//	l[t]    = lse[t] - (1 - Smoothing) * x[t,labels[t]] - Smoothing * mean(x[t,:]) + ZLoss * lse[t]²
//	loss    = sum of l[t] over counted tokens / their number      Sum: without the division
//
// and, times DLoss,
//
//	dx[t,v] = (exp(x[t,v] - lse[t]) * (1 + 2 * ZLoss * lse[t]) - (1 - Smoothing) * [v = labels[t]] - Smoothing / vocabulary) / number
//	dh      = dx * W
//	dw      = dxᵀ * h
//
//	tensor              shape                 format
//	H, DH               (tokens, dim)         DType
//	W, DW               (vocabulary, dim)     DType, Grad
//	Labels              (tokens)              int32
//	Losses (l), LSE     (tokens)              float32
//	Loss, DLoss         (1)                   float32
//	Logits              (tokens, vocabulary)  DType: instead of H and W if Dim is 0
//
// A token whose label is Ignore (-100) is not counted: its l and its gradients are 0. If no token is
// counted, the loss and all gradients are 0. A label that is neither Ignore nor in 0..vocabulary-1 makes
// the l and the gradients of its token NaN, and so the loss and dw; memory is not read by it.
//
// The package takes a chunk of tokens after the other. A chunk has its logits, float32, in the workspace
// (Options.Memory), and [Backward] replaces them by dx, which is rounded to DType. So Backward takes three
// products, two without dw (Frozen), and computes the loss on the way: a training step calls Backward
// alone, and [Forward] is for evaluation. Chunks of the vocabulary would take four products and three,
// since no dx is known before the lse of all chunks; in return they would write each row of dw once. That
// is less only where a chunk has few tokens, by estimate about 600 on an H200, for each of which dw is read and
// written. Options.Rows bounds the rows of W in a product, as a device does whose kernels see less of a
// buffer than all of W.
//
// With Dim 0, the logits are given, and Backward writes dx in their place.
//
// The same call on the same device gives the same bits. Several goroutines may call the functions. A
// vk.Cmd belongs to one of them.
//
// Source: the chunks of tokens are those of Hsu et al., Liger Kernel, 2024 (arXiv:2410.10989).
package xent

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Tensors are what both passes read and write.
type Tensors struct {
	H, W   vk.Tensor // not with Dim 0
	Logits vk.Tensor // exactly with Dim 0; Backward writes the gradient in its place
	Labels vk.Tensor

	Losses, LSE, Loss vk.Tensor // written; each may be left out
}

// Gradients are what Backward reads and writes: DLoss, the gradient of what follows by the loss, such as
// a loss scale, is read.
type Gradients struct {
	DLoss vk.Tensor // may be left out: 1
	DH    vk.Tensor // not with Dim 0
	DW    vk.Tensor // neither with Dim 0 nor with Frozen
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Impl forces a path of the products.
	Impl gemm.Impl
	// Memory is the most bytes of logits at a time; a token's are the least. 0 is 512 MiB, or what a
	// kernel of the device sees of a buffer. More tokens at a time are faster, above all with dw.
	Memory int64
	// Rows is the most rows of W in a product. 0 is all that a kernel of the device sees of a buffer.
	Rows int
	// Tuning has rows of gemm measured on the device, for the products. Nil is none.
	Tuning *kit.Tuning
	// Workspace is memory for the call, at least as many bytes as the function Workspace says. Its
	// content is lost. Calls that share it run one after the other. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
}

// A Problem holds the sizes, formats and options of a call.
type Problem struct {
	Tokens, Vocabulary int
	Dim                int // of h and of a row of W; 0: the logits are given
	// Ignore is the label of tokens that are not counted; 0 is -100.
	Ignore int
	// Smoothing, from 0 to 1, is the part of a token that all words share. It is PyTorch's label_smoothing.
	Smoothing float64
	// ZLoss is the factor of lse² in the loss, which keeps lse near 0; it is not negative.
	ZLoss float64
	// Sum makes the loss the sum over counted tokens, not their mean. Micro-batches have one mean so:
	// DLoss is then 1 / the number of all counted tokens.
	Sum bool
	// Frozen leaves dw out.
	Frozen bool
	// Accumulate adds dw to what DW held, the gradient of a tied embedding or of another micro-batch.
	Accumulate bool
	DType      dtype.DType  // of h, W and dh, or of the logits
	Grad       dtype.Option // of dw; the zero value is DType
}

// GradDType returns the format of dw.
func (p Problem) GradDType() dtype.DType { return p.Grad.Or(p.DType) }

// IgnoreLabel returns the label of tokens that are not counted.
func (p Problem) IgnoreLabel() int { return cmp.Or(p.Ignore, -100) }

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	err := cmp.Or(
		problem.ValidateSizes(1, problem.Size{Name: "tokens", N: p.Tokens}, problem.Size{Name: "vocabulary", N: p.Vocabulary}),
		problem.ValidateSizes(0, problem.Size{Name: "dim", N: p.Dim}),
		problem.ValidateFormats(problem.Format{Name: "dtype", DType: p.DType}, problem.Format{Name: "grad", DType: p.GradDType()}))
	switch {
	case err != nil:
		return fmt.Errorf("xent: %w", err)
	case p.Dim == 0 && float64(p.Tokens)*float64(p.Vocabulary) > math.MaxUint32: // kernels count elements in 32 bits
		return fmt.Errorf("xent: tokens=%d by vocabulary=%d are more than %d logits", p.Tokens, p.Vocabulary, uint32(math.MaxUint32))
	case p.Ignore < math.MinInt32 || p.Ignore > math.MaxInt32:
		return fmt.Errorf("xent: ignore=%d is not an int32", p.Ignore)
	case !(p.Smoothing >= 0 && p.Smoothing <= 1):
		return fmt.Errorf("xent: smoothing=%g is not from 0 to 1", p.Smoothing)
	case !(p.ZLoss >= 0) || math.IsInf(float64(float32(p.ZLoss)), 0):
		return fmt.Errorf("xent: z_loss=%g is not a finite number from 0 on", p.ZLoss)
	case p.Dim == 0 && (p.Accumulate || p.Frozen):
		return fmt.Errorf("xent: dim=0, given logits, have no weights that accumulate=%v or frozen=%v could mean", p.Accumulate, p.Frozen)
	case p.Frozen && p.Accumulate:
		return fmt.Errorf("xent: frozen weights have no gradient to accumulate")
	}
	return nil
}

// String describes the problem in a few words.
func (p Problem) String() string {
	s := fmt.Sprintf("%d tokens, %d words, dim %d, %v, gradient %v", p.Tokens, p.Vocabulary, p.Dim, p.DType, p.GradDType())
	for _, word := range []struct {
		on   bool
		name string
	}{{p.Frozen, "frozen"}, {p.Accumulate, "accumulated"}, {p.Sum, "sum"}, {p.Smoothing > 0, "smoothed"}, {p.ZLoss > 0, "z-loss"}} {
		if word.on {
			s += ", " + word.name
		}
	}
	return s
}

// FLOPs returns the operations of the forward pass: 2 * tokens * vocabulary * dim of the product, and
// 4 for each logit (largest, difference, exponential, sum).
func (p Problem) FLOPs() float64 { return p.logits() * (2*float64(p.Dim) + 4) }

// BackwardFLOPs returns the operations of the backward pass, which includes the forward pass: two more
// products, one if W is frozen, and 4 more for each logit.
func (p Problem) BackwardFLOPs() float64 {
	products := 3.0
	if p.Frozen {
		products = 2
	}
	return p.logits() * (2*products*float64(p.Dim) + 8)
}

func (p Problem) logits() float64 { return float64(p.Tokens) * float64(p.Vocabulary) }

// Bytes returns the least memory traffic of the forward pass: h and W, or the logits, and labels are read,
// l and lse written.
func (p Problem) Bytes() float64 { return p.operands() + 12*float64(p.Tokens) }

// BackwardBytes returns the memory traffic of the backward pass: that of the forward pass, and dh and dw
// written, or dx. An accumulated dw is read, too.
func (p Problem) BackwardBytes() float64 {
	if p.Dim == 0 {
		return p.Bytes() + p.operands()
	}
	times := 1.0
	switch {
	case p.Frozen:
		times = 0
	case p.Accumulate:
		times = 2
	}
	d := float64(p.Dim)
	return p.Bytes() + d*(float64(p.Tokens)*float64(p.DType.Size())+times*float64(p.Vocabulary)*float64(p.GradDType().Size()))
}

// operands returns the bytes of h and W, or of the logits.
func (p Problem) operands() float64 {
	if p.Dim == 0 {
		return p.logits() * float64(p.DType.Size())
	}
	return float64(p.Tokens+p.Vocabulary) * float64(p.Dim) * float64(p.DType.Size())
}
