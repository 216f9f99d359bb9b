// Package mlp computes two-layer perceptrons and their gradients on a Vulkan device: one, or the
// heads of a model, which share their input.
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
// The forward pass of one perceptron is two products of package gemm, the first with silu in its
// epilogue. On request (Options.Fused) it is one kernel whose hidden units never reach memory
// (back-to-back GEMM), which was slower on an H200. The backward pass is four products: dx, dW1,
// dW2, and dy * W2ᵀ, whose epilogue multiplies by silu'(pre) and, unless the caller kept silu(pre),
// writes it. A fifth product computes pre again unless the caller kept it:
//
//	Problem.Keep  elements of DType for each token    products of Backward   what they write between them
//	KeepNothing   0                                   5                      3 * hidden for each token
//	KeepPre       hidden                              4                      2 * hidden
//	KeepHidden    2 * hidden                          4                      hidden
//
// Heads are products of a batch. On matrices, with at most 8 outputs of a head, the forward pass
// is one kernel and a sum (internal/pipelines/gemm/skinny), and hidden units reach memory only if
// the caller keeps pre. In the backward pass only dpre does: one kernel and a sum make it and
// dW2, from x and W1 or from a pre that was kept. Elsewhere silu(pre) and pre lie in the
// workspace. Keeping pre costs memory: 437 MB for 16000 tokens and 10 heads of 1365 in 16 bits.
// Without heads, 8 outputs or fewer are two products, since the skinny kernels were measured with
// heads only.
//
// The workspace holds the tensors between products for some heads at a time, and the next heads
// take their place. So memory is bounded whatever the number of heads. As many heads are computed
// at a time as have 256 MiB of silu(pre) or of sums of y, or 512 MiB of dpre alone, at most
// Options.HeadsAtATime:
//
//	pass      products for each head                         workspace for the heads at a time
//	Forward   1, with silu and W2 after it                   sums of y by columns of W1, float32
//	          2, the first with silu                         silu(pre)
//	Backward  3, one of them pre once more, 2 if it is kept  dpre, a copy of W1, sums of dW2 by tokens, float32
//	          5, likewise, 4 if it is kept                   silu(pre), pre and later dpre, a copy of W1
//
// Rows of hidden units in the workspace lie a multiple of 8 elements apart, from 1024 elements on
// a multiple of 64, which are whole lines of a cache. So odd widths such as 1365 cost nothing
// there. Rows of Pre and Hidden should lie so, too. In the backward pass of heads, the hidden
// units of a token for all heads at a time are one row, in which zeros pad each head to 16 bytes.
// So the sum over heads in dx is the sum over k of one product,
//
//	dx = [dpre[0] 0 dpre[1] 0 …] * [W1[0] 0 W1[1] 0 …]ᵀ
//
// in float32, and dx is rounded once for the heads at a time. Tensors between products are rounded
// to DType. A pre beyond its range, 65504 in float16, is an infinity there, and the backward pass
// makes NaN of it.
//
// Products of the backward pass that do not need each other run side by side. Package mixture is
// heads and gmm behind them, whose outputs do not reach memory in the forward pass.
//
// All is deterministic: the same call on the same device gives the same bits. Several goroutines
// may call the functions; a vk.Cmd belongs to one of them.
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

// Tensors are what Forward reads and writes. Backward reads them again, but for Y.
type Tensors struct {
	X, W1, W2 vk.Tensor
	Y         vk.Tensor // written
	Pre       vk.Tensor // written; exactly if Problem.Keep is KeepPre or KeepHidden
	Hidden    vk.Tensor // written; exactly if Problem.Keep is KeepHidden
}

// Gradients are what Backward reads and writes: DY, the gradient of a loss by Y, is read.
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
	// FusedConfig forces one kernel, too, with this configuration, which must be feasible: the
	// words of Plan.String, as in "pair s2 t2x2 h1x1 x4 ahead2". Forced kernels are for tuning and
	// tests.
	FusedConfig string
	// HeadsAtATime is the most heads that are computed at a time; 0 leaves it to the package.
	HeadsAtATime int
	// Products makes passes write hidden units of heads to memory where they could do
	// without.
	Products bool
	// Tuning has rows measured on the device. Rows of gemm are for products, rows of grouped for
	// kernels that keep hidden units on the chip. These rows come before the built-in tables. Nil
	// is none. kit.LoadTuningFile reads one.
	Tuning *kit.Tuning
	// Workspace is memory for the tensors between products, at least as many bytes as the function
	// Workspace says. Its content is lost. Calls that share it run one after the other. Nil takes
	// memory of the Cmd.
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

// how returns the options of a product.
func (o Options) how(opt engine.Options) engine.Options {
	opt.Impl, opt.Tuning = o.Impl, o.Tuning
	return opt
}

func validate(p Problem, o Options) error { return cmp.Or(p.Validate(), o.Validate()) }

// skinny reports whether kernels that keep hidden units on the chip are asked for.
func (o Options) skinny(p Problem) bool { return p.Heads > 0 && !o.Products }

// inputs returns the tensors that both passes read.
func (t *Tensors) inputs(p Problem) []argument.Argument {
	return []argument.Argument{
		argument.New("x", t.X, true, p.DType, p.XShape()),
		argument.New("w1", t.W1, true, p.DType, p.W1Shape()),
		argument.New("w2", t.W2, true, p.DType, p.W2Shape()),
	}
}

// kept returns the tensors that Forward leaves to Backward.
func (t *Tensors) kept(p Problem) (pre, hidden argument.Argument) {
	return argument.New("pre", t.Pre, p.Keep >= KeepPre, p.DType, p.PreShape()),
		argument.New("hidden", t.Hidden, p.Keep == KeepHidden, p.DType, p.PreShape())
}

// A Plan says how a problem runs on a device: the heads of the first time, if not all are
// computed at a time. Kernels also lists kernels that only later heads run. It is a kit.Plan.
type Plan struct {
	words, kernels []string
	bytes          int64
	parts          []chain.Part
}

// Parts lists the calls that Options.Tuning may have rows for, in order. Command tune tunes them.
func (p Plan) Parts() []chain.Part { return p.parts }

// String names the kernels and configurations of the products of the pass, in order. Equal
// neighbours are named once.
func (p Plan) String() string { return strings.Join(slices.Compact(slices.Clone(p.words)), " | ") }

// Workspace is how many bytes of memory a call needs.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the modules that run, in order, without gemm_align for operands of the caller:
// whether one is copied depends on the alignment of its rows, which only the tensors tell.
func (p Plan) Kernels() []string { return p.kernels }

// add adds kernels. Words describes the kernels in String.
func (p *Plan) add(words string, kernels ...string) {
	p.words, p.kernels = append(p.words, words), append(p.kernels, kernels...)
}

// also adds the kernels of later heads that the first do not run.
func (p *Plan) also(describe func(later *Plan)) {
	var later Plan
	describe(&later)
	for _, name := range later.kernels {
		if !slices.Contains(p.kernels, name) {
			p.kernels = append(p.kernels, name)
		}
	}
}

// skinny adds kernels that keep hidden units on the chip. Options.Tuning may have rows of grouped
// for them.
func (p *Plan) skinny(pass kit.Pass, product engine.Problem, config string, kernels []string) {
	p.add("skinny "+config, kernels...)
	p.parts = append(p.parts, chain.Part{Kernel: "grouped", Pass: pass, Problem: product})
}

func (p *Plan) products(list ...*chain.Product) {
	for _, x := range list {
		p.add(x.Config().String(), x.Kernels()...)
		p.parts = append(p.parts, x.Part())
	}
}

// Choose returns how p would run on a device. Errors about p and o are as in Forward and Backward.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (runs Plan, err error) {
	if err := argument.Pass("mlp", pass); err != nil {
		return Plan{}, err
	}
	if pass == kit.Backward {
		plan, err := newBackwardPlan(caps, p, o)
		if err != nil {
			return Plan{}, err
		}
		runs.bytes = plan.memory.Bytes
		plan.parts[0].describe(&runs, p)
		for i := range plan.parts {
			runs.also(func(later *Plan) { plan.parts[i].describe(later, p) })
		}
		return runs, nil
	}
	plan, err := newForwardPlan(caps, p, o)
	if err != nil {
		return Plan{}, err
	}
	runs.bytes = plan.memory.Bytes
	plan.parts[0].describe(&runs)
	for i := range plan.parts {
		runs.also(plan.parts[i].describe)
	}
	return runs, nil
}

// Supports returns nil if the device can compute p, and otherwise why not: an error that
// wraps vk.ErrUnsupported, or one about p or o.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns how many bytes Options.Workspace must have, with the errors of Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	plan, err := Choose(caps, p, pass, o)
	return plan.bytes, err
}
