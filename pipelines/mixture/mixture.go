// Package mixture computes the log-probability of tokens under mixtures of normal distributions
// whose components are the heads of a model, and its gradients. The model is package gmm behind the
// heads of package mlp: the last layer of a mixture density network.
//
//	(logit, mu, log_sigma)[:, k] = silu(x * w1[k]) * w2[k]          silu(v) = v / (1 + exp(-v))
//
//	log_w = log_softmax(logit)
//	log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
//	log_p = logsumexp over heads of log_w + log_n
//	loss  = -mean(log_p)
//
//	tensor        shape                format
//	X, DX         (tokens, in)         DType
//	W1, DW1       (heads, in, hidden)  DType, Grad
//	W2, DW2       (heads, hidden, 3)   DType, Grad; the last axis is logit, mu, log sigma
//	Y, LogP       (tokens)             float32
//	Loss, DLoss   (1)                  float32
//
// On matrices [Forward] is a large kernel and a small one. A workgroup of the first has a block
// of tokens and a group of heads. It multiplies the block by the weights of one head after the
// other, and keeps for each token the state that gmm needs of the components so far:
//
//	tokens   heads 0 1 2 3 4    heads 5 6 7 8 9
//	0..127   workgroup 0        workgroup 2         state: 32 bytes for each token and group
//	128..    workgroup 1        workgroup 3
//
// Neither hidden units (tokens, heads, hidden) nor the outputs of heads (tokens, heads, 3) reach
// memory, and outputs are not rounded. The second kernel merges the groups in a fixed order, and
// adds up the loss. The number of groups follows from the tokens and the device; Options.Groups
// bounds it.
//
// In float32, on devices without matrices and on path scalar, Forward runs the kernels of mlp and
// of gmm, and the outputs of heads lie in its workspace, in float32. Options.Outputs chooses this
// everywhere. It is faster where tokens make few workgroups: on an H200, ten heads of 5000 tokens
// take 345 µs with outputs in memory and 392 µs fused, of 16000 tokens 1008 µs and 943 µs.
//
// [Backward] computes the outputs once more. Its workspace holds them and the gradients by them:
// 12 bytes and 16 or 32 bytes for each token and head, beside the workspace of mlp. Where
// silu(x*W1) of all heads is in memory at a time (Options.HeadsAtATime), the outputs are one
// product of it. Elsewhere they cost the two products of a forward pass.
//
// As in gmm, nothing overflows on the way to log_p. If the outputs are finite, log_p is a float32
// or the infinity that it rounds to, never NaN.
//
// The same call on the same device gives the same bits. Several goroutines may call the
// functions. A vk.Cmd belongs to one of them.
package mixture

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Tensors are what Forward reads and writes. Backward reads the first four.
type Tensors struct {
	X, W1, W2, Y vk.Tensor
	LogP, Loss   vk.Tensor // written; either may be left out
}

// Gradients are what Backward reads and writes: DLoss, the gradient of what follows by the loss,
// is read.
type Gradients struct {
	DLoss        vk.Tensor // may be left out: 1
	DX, DW1, DW2 vk.Tensor
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Impl forces a path of the products.
	Impl gemm.Impl
	// Groups is the most groups of heads that Forward makes for its workgroups; 0 leaves it to
	// the package.
	Groups int
	// Outputs makes Forward write the outputs of heads to memory where it could do without.
	Outputs bool
	// HeadsAtATime is the most heads whose hidden units are in memory at a time, where they are
	// written at all; 0 leaves it to package mlp.
	HeadsAtATime int
	// Tuning has rows measured on the device. Rows of mixture are for the fused kernel, rows of
	// gemm and grouped for the rest, as in package mlp. These rows come before the built-in tables.
	// Nil is none. kit.LoadTuningFile reads one.
	Tuning *kit.Tuning
	// Workspace is memory for the call, at least as many bytes as the function Workspace says.
	// Its content is lost. Calls that share it run one after the other. Nil takes memory of the
	// Cmd.
	Workspace *vk.Buffer
}

// Validate returns an error that names the first value that breaks a rule.
func (o Options) Validate() error {
	if o.Groups < 0 {
		return fmt.Errorf("mixture: groups=%d is negative", o.Groups)
	}
	if o.HeadsAtATime < 0 {
		return fmt.Errorf("mixture: heads_at_a_time=%d is negative", o.HeadsAtATime)
	}
	return nil
}

// perceptrons returns the options of package mlp.
func (o Options) perceptrons() mlp.Options {
	return mlp.Options{Impl: o.Impl, HeadsAtATime: o.HeadsAtATime, Tuning: o.Tuning}
}

// Forward computes the log-probability of y under mixtures of heads, and the mean of its
// opposite:
//
//	(logit, mu, log_sigma)[:, k] = silu(x * w1[k]) * w2[k]
//	log_p = logsumexp over k of log_softmax(logit)[k] + log_n[k]
//	log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
//	loss  = -mean(log_p)
//
// X is (tokens, in), W1 (heads, in, hidden) and W2 (heads, hidden, 3), of p.DType, with any
// strides and a contiguous last axis. Strides and offsets that are multiples of 8 elements are
// fastest. Y and LogP are (tokens) and Loss is (1), float32 and contiguous. A log_p below -3.4e38
// is -Inf, and the loss is +Inf then. Where the outputs are finite nothing is NaN.
//
// Forward records into c and returns; LogP and Loss are valid once c has completed, and have
// memory of their own.
//
// It returns an error that wraps vk.ErrUnsupported if no path on the device handles p, and an
// error naming the argument if a tensor does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	plan, err := newForwardPlan(c.Device().Caps(), p, o)
	if err != nil {
		return err
	}
	memory, err := argument.Open(c, "mixture", o.Workspace, plan.memory.Bytes, t.inputs(p), []argument.Argument{
		argument.New("log_p", t.LogP, !t.LogP.IsZero(), dtype.Float32, []int{p.Tokens}),
		argument.New("loss", t.Loss, !t.Loss.IsZero(), dtype.Float32, []int{1}),
	})
	if err != nil {
		return err
	}
	return plan.record(c, memory, t, p, o)
}

// inputs returns the tensors that both passes read.
func (t *Tensors) inputs(p Problem) []argument.Argument {
	return []argument.Argument{
		argument.New("x", t.X, true, p.DType, p.XShape()),
		argument.New("w1", t.W1, true, p.DType, p.W1Shape()),
		argument.New("w2", t.W2, true, p.DType, p.W2Shape()),
		argument.New("y", t.Y, true, dtype.Float32, []int{p.Tokens}),
	}
}

// Backward computes the gradients of Forward's loss by X, W1 and W2, times DLoss. Package gmm
// makes the gradients by the outputs of heads, in p.DType, and package mlp the others from these.
//
// A gradient has the shape of its tensor, see Forward. DX is of p.DType, DW1 and DW2 are of
// p.GradDType(). DLoss is (1), float32; left out it is 1. DX, DW1 and DW2 have memory of their
// own. Backward reads nothing that Forward wrote.
//
// A gradient by an output that p.DType cannot hold becomes its largest number, since an infinity
// times 0 would be NaN. With 16 bits, DLoss should scale the gradients so that none overflows and
// small ones are not lost. Gradients that overflow after that are infinite, or NaN where
// infinities meet.
//
// Backward records into c and returns; gradients are valid once c has completed. Errors are as in
// Forward.
func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	plan, err := Choose(c.Device().Caps(), p, kit.Backward, o)
	if err != nil {
		return err
	}
	list := append(t.inputs(p), argument.New("dloss", g.DLoss, !g.DLoss.IsZero(), dtype.Float32, []int{1}))
	memory, err := argument.Open(c, "mixture", o.Workspace, plan.bytes, list, []argument.Argument{
		argument.New("dx", g.DX, true, p.DType, p.XShape()),
		argument.New("dw1", g.DW1, true, p.GradDType(), p.W1Shape()),
		argument.New("dw2", g.DW2, true, p.GradDType(), p.W2Shape()),
	})
	if err != nil {
		return err
	}
	loss := func(c *vk.Cmd, dy, out vk.Tensor) error {
		m, d := gmm.Tensors{Y: t.Y}, gmm.Gradients{DLoss: g.DLoss}
		m.Logit, m.Mu, m.LogSigma = gmm.Interleaved(out)
		d.DLogit, d.DMu, d.DLogSigma = gmm.Interleaved(dy)
		return gmm.Backward(c, m, d, p.Mixtures(), gmm.Options{Saturate: true})
	}
	heads := o.perceptrons()
	heads.Workspace = memory
	return wrap(mlp.BackwardLoss(c, t.heads(), mlp.Gradients{DX: g.DX, DW1: g.DW1, DW2: g.DW2}, loss, p.Perceptrons(), heads))
}

// heads returns the tensors of the heads. Y is of the mixtures, not of the heads.
func (t *Tensors) heads() mlp.Tensors { return mlp.Tensors{X: t.X, W1: t.W1, W2: t.W2} }

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct {
	words   string
	kernels []string
	bytes   int64
	parts   []chain.Part
}

// Parts lists the calls that Options.Tuning may have rows for, in order. Command tune tunes them.
func (p Plan) Parts() []chain.Part { return p.parts }

// String names what runs.
func (p Plan) String() string { return p.words }

// Workspace is how many bytes of memory a call needs.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the modules that run, in order, without gemm_align: whether an operand is copied
// depends on the alignment of its rows, which only the tensors tell.
func (p Plan) Kernels() []string { return p.kernels }

// Choose returns how p would run on a device. Errors about p and o are as in Forward and Backward.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (Plan, error) {
	if err := argument.Pass("mixture", pass); err != nil {
		return Plan{}, err
	}
	if pass == kit.Forward {
		plan, err := newForwardPlan(caps, p, o)
		return Plan{plan.words, plan.kernels, plan.memory.Bytes, plan.parts}, err
	}
	if err := validate(p, o); err != nil {
		return Plan{}, err
	}
	loss, err := gmm.Choose(caps, p.Mixtures(), kit.Backward, gmm.Options{})
	if err != nil {
		return Plan{}, wrap(err)
	}
	plan, err := mlp.ChooseLoss(caps, p.Perceptrons(), o.perceptrons(), loss.Kernels()...)
	if err != nil {
		return Plan{}, wrap(err)
	}
	return Plan{"outputs in memory: " + plan.String(), plan.Kernels(), plan.Workspace(), plan.Parts()}, nil
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

// A Problem holds the sizes and formats of a call.
type Problem struct {
	Tokens, Heads, In, Hidden int
	DType                     dtype.DType
	Grad                      dtype.Option // of DW1 and DW2; the zero value is DType
}

// headOutputs is the number of outputs of a head: logit, mu, log sigma.
const headOutputs = 3

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error {
	err := cmp.Or(
		problem.ValidateSizes(1, problem.Size{Name: "tokens", N: p.Tokens}, problem.Size{Name: "heads", N: p.Heads}, problem.Size{Name: "in", N: p.In}, problem.Size{Name: "hidden", N: p.Hidden}),
		problem.ValidateFormats(problem.Format{Name: "dtype", DType: p.DType}, problem.Format{Name: "grad", DType: p.GradDType()}))
	if err != nil {
		return fmt.Errorf("mixture: %w", err)
	}
	if float64(p.Tokens)*float64(p.Heads) > math.MaxUint32/headOutputs {
		return fmt.Errorf("mixture: tokens=%d by heads=%d are more than %d", p.Tokens, p.Heads, uint32(math.MaxUint32/headOutputs))
	}
	return nil
}

// Perceptrons returns the problem of the heads alone.
func (p Problem) Perceptrons() mlp.Problem {
	return mlp.Problem{Tokens: p.Tokens, Heads: p.Heads, In: p.In, Hidden: p.Hidden, Out: headOutputs, DType: p.DType, Grad: p.Grad}
}

// Mixtures returns the problem of the mixtures alone, with outputs in float32 and gradients by
// them in p.DType.
func (p Problem) Mixtures() gmm.Problem {
	return gmm.Problem{Tokens: p.Tokens, Components: p.Heads, DType: dtype.Float32, Grad: dtype.Some(p.DType)}
}

// GradDType returns the format of DW1 and DW2.
func (p Problem) GradDType() dtype.DType { return p.Grad.Or(p.DType) }

// FLOPs returns the operations of the forward pass: the products of the heads, and the operations of gmm.
func (p Problem) FLOPs() float64 { return p.Perceptrons().FLOPs() + p.Mixtures().FLOPs() }

// BackwardFLOPs returns the operations of the gradients. Hidden units and outputs that are
// computed again are not counted.
func (p Problem) BackwardFLOPs() float64 {
	return p.Perceptrons().BackwardFLOPs() + p.Mixtures().BackwardFLOPs()
}

// weights returns the number of elements of w1 and w2.
func (p Problem) weights() float64 {
	return float64(p.Heads) * float64(p.Hidden) * float64(p.In+headOutputs)
}

// Bytes returns the least memory traffic of the forward pass: each tensor once.
func (p Problem) Bytes() float64 {
	return float64(p.DType.Size())*(float64(p.Tokens)*float64(p.In)+p.weights()) + 8*float64(p.Tokens) + 4
}

// BackwardBytes returns the memory traffic of the backward pass: inputs and gradients once.
func (p Problem) BackwardBytes() float64 {
	return float64(p.DType.Size())*(2*float64(p.Tokens)*float64(p.In)+p.weights()) + float64(p.GradDType().Size())*p.weights() + 4*float64(p.Tokens)
}

// XShape, W1Shape and W2Shape are the shapes of tensors and of their gradients.
func (p Problem) XShape() []int  { return p.Perceptrons().XShape() }
func (p Problem) W1Shape() []int { return p.Perceptrons().W1Shape() }
func (p Problem) W2Shape() []int { return p.Perceptrons().W2Shape() }

// String describes the problem in a few words.
func (p Problem) String() string { return "mixtures of " + p.Perceptrons().String() }
