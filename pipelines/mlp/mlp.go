// Package mlp computes two-layer perceptrons and their gradients on a Vulkan device: one, or
// the heads of a model, which share their input.
//
//	pre[k]  = x * W1[k]
//	y[:, k] = silu(pre[k]) * W2[k]                  silu(v) = v / (1 + exp(-v))
//
//	dpre[k] = (dy[:, k] * W2[k]ᵀ) ∘ silu'(pre[k])
//	dx      = sum over k of dpre[k] * W1[k]ᵀ
//	dW1[k]  = xᵀ * dpre[k]     dW2[k] = silu(pre[k])ᵀ * dy[:, k]
//
//	tensor       shape                    format
//	X, DX        (tokens, in)             DType
//	W1, DW1      (heads, in, hidden)      DType, Grad
//	W2, DW2      (heads, hidden, out)     DType, Grad
//	Y, DY        (tokens, heads, out)     DType; Y float32 with Problem.Float32
//	Pre, Hidden  (tokens, heads, hidden)  DType; Hidden is silu(pre)
//
// With Problem.Heads 0 tensors have no axis of heads. Sums are float32.
//
// One perceptron is two products of package gemm forward, the first with silu in its epilogue,
// or, where that was measured to be faster, one kernel whose hidden units never reach memory
// (Options.Fused); and four products backward, of which dy * W2ᵀ multiplies by silu'(pre), and
// unless the caller kept silu(pre) writes it while it is at it, and one more to compute pre again
// unless the caller kept that:
//
//	Problem.Keep  elements of DType for each token    products of Backward   what they write between them
//	KeepNothing   0                                   5                      3 * hidden for each token
//	KeepPre       hidden                              4                      2 * hidden
//	KeepHidden    2 * hidden                          4                      hidden
//
// Heads are products of a batch. On matrices, with at most 8 outputs of a head, the forward pass
// is one kernel and a sum (internal/pipelines/gemm/skinny), and no hidden unit reaches memory
// unless the caller keeps pre; in the backward pass dpre alone does, as one kernel and a sum make
// it and dW2, of x and W1 or of a pre that was kept. Else silu(pre) and pre are written to
// the workspace. Keeping pre is memory for time: 437 MB of 16000 tokens, 10 heads of 1365, in 16
// bits. (Skinny kernels were measured with heads: without, 8 outputs or fewer are two products.)
//
// What is in memory between products is that of as many heads at a time as have 256 MiB of
// silu(pre) or of sums of y, or 512 MiB of dpre alone, or of Options.HeadsAtATime, and the next
// heads take their place: memory is bounded, whatever the number of heads.
//
//	pass      products for each head                         workspace for the heads at a time
//	Forward   1, with silu and W2 after it                   sums of y by columns of W1, float32
//	          2, the first with silu                         silu(pre)
//	Backward  3, one of them pre once more, 2 if it is kept  dpre, a copy of W1, sums of dW2 by tokens, float32
//	          5, likewise, 4 if it is kept                   silu(pre), pre and later dpre, a copy of W1
//
// Rows of hidden units lie a multiple of 8 elements apart in memory of our own, from 1024 on one
// of 64, whole lines of a cache, so that odd widths such as 1365 cost nothing there. Those of Pre
// and Hidden should lie so, too. In the backward pass of heads, a row of hidden units of all heads at a time is one row of memory,
// each head's padded to 16 bytes with zeros. That makes the sum over heads in dx the k of one
// product,
//
//	dx = [dpre[0] 0 dpre[1] 0 …] * [W1[0] 0 W1[1] 0 …]ᵀ
//
// whose sum is float32; dx is rounded to its format once for each time. What is in memory
// between products is rounded to DType. A pre that it cannot hold, beyond 65504 in float16,
// is an infinity there, of which the backward pass makes NaN.
//
// Products of the backward pass that need nothing of each other run side by side. Package mixture
// is heads and gmm behind them, in one kernel forward.
//
// All is deterministic: the same call on the same device gives the same bits.
// Several goroutines may call the functions; a vk.Cmd belongs to one of them.
package mlp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Tensors are what Forward reads and writes, and Backward reads again.
type Tensors struct {
	X, W1, W2 vk.Tensor
	Y         vk.Tensor // written; Backward does not read it
	Pre       vk.Tensor // written; exactly if Problem.Keep is KeepPre or KeepHidden
	Hidden    vk.Tensor // written; exactly if Problem.Keep is KeepHidden
}

// Gradients are those of a loss: DY, which Backward is given, and what it writes.
type Gradients struct {
	DY           vk.Tensor
	DX, DW1, DW2 vk.Tensor
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Impl forces a path of the products.
	Impl gemm.Impl
	// Fused forces one kernel for the forward pass of one perceptron, or two products.
	Fused Fused
	// FusedConfig forces one kernel, too, and its configuration, which must be feasible: the
	// words that Plan has of it, as in "pair s2 t2x2 h1x1 x4 ahead2". It is for tuning and tests.
	FusedConfig string
	// HeadsAtATime is how many heads are computed at a time, at most; 0 leaves it to the
	// package.
	HeadsAtATime int
	// Products makes passes write hidden units of heads to memory where they could do
	// without.
	Products bool
	// Tuning is what was measured on the device: its rows of gemm, for products, and of grouped,
	// for kernels that keep hidden units on the chip, come before those of the built-in table.
	// Nil is none. kit.LoadTuningFile reads one.
	Tuning *kit.Tuning
	// Workspace is memory for what is between the products, Workspace bytes of it, whose content
	// is lost. Calls that share it run one after the other. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
}

// Validate returns an error that names the first value that breaks a rule.
func (o Options) Validate() error {
	switch {
	case o.Fused > FusedOff:
		return fmt.Errorf("mlp: fused=%v is not one of auto, on, off", o.Fused)
	case o.HeadsAtATime < 0:
		return fmt.Errorf("mlp: heads_at_a_time=%d is negative", o.HeadsAtATime)
	}
	_, err := o.fusedConfig()
	return err
}

// how says how products are chosen.
func (o Options) how() chain.How { return chain.How{Impl: o.Impl, Tuning: o.Tuning} }

func validate(p Problem, o Options) error { return cmp.Or(p.Validate(), o.Validate()) }

// skinny reports whether kernels that keep hidden units on the chip are asked for.
func (o Options) skinny(p Problem) bool { return p.Heads > 0 && !o.Products }

// inputs returns what both passes read.
func (t *Tensors) inputs(p Problem) []argument.Argument {
	return []argument.Argument{
		argument.New("x", t.X, true, p.DType, p.XShape()),
		argument.New("w1", t.W1, true, p.DType, p.W1Shape()),
		argument.New("w2", t.W2, true, p.DType, p.W2Shape()),
	}
}

// kept returns what Forward leaves to Backward.
func (t *Tensors) kept(p Problem) (pre, hidden argument.Argument) {
	return argument.New("pre", t.Pre, p.Keep >= KeepPre, p.DType, p.PreShape()),
		argument.New("hidden", t.Hidden, p.Keep == KeepHidden, p.DType, p.PreShape())
}

// A Plan says how a problem runs on a device: the first heads of it, if not all at a time. It
// is a kit.Plan.
type Plan struct {
	words, kernels []string
	bytes          int64
	parts          []chain.Part
}

// Parts lists what Options.Tuning may have rows for, in order: flashvk tune tunes it.
func (p Plan) Parts() []chain.Part { return p.parts }

// String names what runs for the products of the pass, in their order, the same only once.
func (p Plan) String() string { return strings.Join(slices.Compact(slices.Clone(p.words)), " | ") }

// Workspace is how many bytes of memory a call needs for what is between its kernels.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the modules that run, in order. Copies of operands whose rows start anywhere
// (gemm_pack) depend on the tensors, and are left out.
func (p Plan) Kernels() []string { return p.kernels }

// add adds kernels, by what they are called in String.
func (p *Plan) add(words string, kernels ...string) {
	p.words, p.kernels = append(p.words, words), append(p.kernels, kernels...)
}

// skinny adds kernels that keep hidden units on the chip, for which Options.Tuning may have rows of
// grouped.
func (p *Plan) skinny(pass kit.Pass, product engine.Problem, config string, kernels []string) {
	p.add("skinny "+config, kernels...)
	p.parts = append(p.parts, chain.Part{Kernel: "grouped", Pass: pass, Problem: product})
}

// products adds products.
func (p *Plan) products(list ...*chain.Product) {
	for _, x := range list {
		p.add(x.Config().String(), x.Kernels()...)
		p.parts = append(p.parts, x.Part())
	}
}

// Choose returns how p would run on a device. Its errors are those of Forward and Backward
// about p and o.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (runs Plan, err error) {
	if pass == kit.Backward {
		plan, err := newBackwardPlan(caps, p, o)
		if err != nil {
			return Plan{}, err
		}
		runs.bytes = plan.memory.Bytes
		plan.parts[0].describe(&runs, p)
		return runs, nil
	}
	plan, err := newForwardPlan(caps, p, o)
	if err != nil {
		return Plan{}, err
	}
	runs.bytes = plan.memory.Bytes
	plan.parts[0].describe(&runs)
	return runs, nil
}

// Supports returns nil if the device can compute p, and otherwise why not: an error that
// wraps vk.ErrUnsupported, or one about p or o.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns how many bytes Options.Workspace must have. Its errors are those of
// Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	plan, err := Choose(caps, p, pass, o)
	return plan.bytes, err
}
