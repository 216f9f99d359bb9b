// Package mixture computes the log-probability of tokens under mixtures of normal
// distributions whose components are the heads of a model, and its gradients: package
// gmm behind the heads of package mlp, the last layer of a mixture density network.
//
//	(logit, mu, log_sigma)[:, k] = silu(x * w1[k]) * w2[k]          silu(v) = v / (1 + exp(-v))
//
//	log_w = log_softmax(logit)
//	log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
//	log_p = logsumexp over heads of log_w + log_n
//	loss  = -mean(log_p)
//
//	tensor     shape                format
//	x, dx      (tokens, in)         Problem.DType
//	w1, dw1    (heads, in, hidden)  Problem.DType, Problem.Grad
//	w2, dw2    (heads, hidden, 3)   likewise; the last axis is logit, mu, log sigma
//	y, log_p   (tokens)             float32
//	loss       (1)                  float32
//
// On matrices, [Forward] is one kernel and two small ones. A workgroup of the first
// multiplies a block of tokens by the weights of a group of heads, one head after the
// other, and keeps of each token what gmm must know of the components it has met:
//
//	tokens   heads 0 1 2 3 4    heads 5 6 7 8 9
//	0..127   workgroup 0        workgroup 2         state: 32 bytes for each token and group
//	128..    workgroup 1        workgroup 3
//
// Neither hidden units (tokens, heads, hidden) nor the outputs of heads (tokens, heads, 3)
// reach memory, and outputs are not rounded. The second kernel merges the groups, always
// in the same order, and the third adds up the loss. How many groups there are follows
// from the tokens and the device: Options.Groups.
//
// Elsewhere, which is float32, devices without matrices, and path scalar, Forward is that
// of mlp and that of gmm, with the outputs of heads in its workspace in float32:
// Options.Outputs has it so everywhere. That is faster where tokens make few workgroups for a
// device: ten heads of 5000 tokens take an H200 345 us so and 393 fused, 16000 tokens 1008
// and 948. [Backward] always has outputs, computed
// once more, and gradients by them in its workspace, 12 and 16 or 32 bytes for each token
// and head, beside what mlp needs. Outputs cost another pass of Forward's products, but
// where silu(x*W1) of all heads is in memory at a time, Options.Heads: there they come of it.
//
// Nothing overflows on the way to log_p, as in gmm: as long as outputs are finite, it is
// what float32 holds, or the infinity that it rounds to, never NaN.
//
// All is deterministic: the same call on the same device gives the same bits.
// Functions are safe for concurrent use, as far as what they are given is: a vk.Cmd
// belongs to one goroutine.
package mixture

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture/ref"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/argument"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Problem holds the sizes and formats of one call.
type Problem = ref.Problem

// ErrUnsupported is wrapped by errors about calls that are valid, but that no kernel
// on the device handles.
var ErrUnsupported = vk.ErrUnsupported

// Options modify a call. The zero value is the default.
type Options struct {
	// Impl forces a path of the products.
	Impl gemm.Impl
	// Groups is into how many groups Forward divides the heads among workgroups, at most;
	// 0 leaves it to the package.
	Groups int
	// Outputs makes Forward write the outputs of heads to memory where it could do without.
	Outputs bool
	// Heads is how many heads' hidden units are in memory at a time, at most, where they
	// are at all; 0 leaves it to package mlp.
	Heads int
	// Workspace is memory, ForwardWorkspace or BackwardWorkspace bytes of it, that nothing
	// else uses until the commands have completed: a second call in the same Cmd comes
	// after a Barrier. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
}

// Validate returns an error that names the first value that breaks a rule.
func (o Options) Validate() error {
	if o.Groups < 0 {
		return fmt.Errorf("mixture: groups=%d is negative", o.Groups)
	}
	if o.Heads < 0 {
		return fmt.Errorf("mixture: heads_at_a_time=%d is negative", o.Heads)
	}
	return nil
}

// perceptrons returns the options of package mlp.
func (o Options) perceptrons() mlp.Options {
	return mlp.Options{Impl: o.Impl, HeadsAtATime: o.Heads}
}

// Forward computes the log-probability of y under mixtures of heads, and minus the mean:
//
//	(logit, mu, log_sigma)[:, k] = silu(x * w1[k]) * w2[k]
//	log_p = logsumexp over k of log_softmax(logit)[k] + log_n[k]
//	log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
//	loss  = -mean(log_p)
//
// X is (tokens, in), w1 (heads, in, hidden) and w2 (heads, hidden, 3), of p.DType, with any
// strides and a contiguous last axis; strides and offsets that are multiples of 8 elements
// are fastest. Y and log_p are (tokens), loss is (1), float32, contiguous. A zero Tensor for
// log_p or loss leaves it out. A log_p below -3.4e38 is -Inf, and so the loss +Inf; with
// inputs whose outputs are finite nothing is NaN.
//
// Forward records into c and returns; log_p and loss are valid once c has completed, and
// have memory of their own. The inputs must be written and visible by then: after another
// kernel of the same Cmd, a c.Barrier() comes before Forward, and one after it before
// outputs are read.
//
// It returns an error that wraps ErrUnsupported if no path on the device handles p, and
// an error naming the argument if a tensor does not fit p.
func Forward(c *vk.Cmd, logP, loss, x, w1, w2, y vk.Tensor, p Problem, opt Options) error {
	plan, err := newForwardPlan(c.Device().Caps(), p, opt)
	if err != nil {
		return err
	}
	err = argument.Check("mixture", inputs(x, w1, w2, y, p), []argument.Argument{
		argument.New("log_p", logP, !logP.IsZero(), dtype.Float32, []int{p.Tokens}),
		argument.New("loss", loss, !loss.IsZero(), dtype.Float32, []int{1}),
	})
	if err != nil {
		return err
	}
	memory, err := plan.memory.Buffer(c, "mixture", opt.Workspace)
	if err != nil {
		return err
	}
	return plan.record(c, memory, logP, loss, x, w1, w2, y, p)
}

// inputs returns what both passes read.
func inputs(x, w1, w2, y vk.Tensor, p Problem) []argument.Argument {
	return []argument.Argument{
		argument.New("x", x, true, p.DType, p.XShape()),
		argument.New("w1", w1, true, p.DType, p.W1Shape()),
		argument.New("w2", w2, true, p.DType, p.W2Shape()),
		argument.New("y", y, true, dtype.Float32, []int{p.Tokens}),
	}
}

// Backward computes the gradients of Forward's loss by x, w1 and w2, times dloss: those of
// gmm by the outputs of heads, in p.DType, and those of mlp from there.
//
// Shapes are those of what they are the gradients of, see Forward; dw1 and dw2 are of
// p.Grad, dx is of p.DType. Dloss is (1), float32; a zero Tensor stands for 1. Dx, dw1 and
// dw2 have memory of their own. It reads nothing that Forward wrote.
//
// Gradients by outputs that p.DType cannot hold are its largest number: an infinity would
// make NaN of gradients that are 0. With 16 bits that, and the rounding of small ones, is
// for dloss to scale; what overflows after it is infinite, or NaN where infinities meet.
//
// Records, waits for, and returns errors as Forward does.
func Backward(c *vk.Cmd, dx, dw1, dw2, dloss, x, w1, w2, y vk.Tensor, p Problem, opt Options) error {
	bytes, err := BackwardWorkspace(c.Device().Caps(), p, opt)
	if err != nil {
		return err
	}
	list := append(inputs(x, w1, w2, y, p), argument.New("dloss", dloss, !dloss.IsZero(), dtype.Float32, []int{1}))
	err = argument.Check("mixture", list, []argument.Argument{
		argument.New("dx", dx, true, p.DType, p.XShape()),
		argument.New("dw1", dw1, true, p.Grad, p.W1Shape()),
		argument.New("dw2", dw2, true, p.Grad, p.W2Shape()),
	})
	if err != nil {
		return err
	}
	memory, err := chain.Memory{Bytes: bytes}.Buffer(c, "mixture", opt.Workspace)
	if err != nil {
		return err
	}
	loss := func(c *vk.Cmd, dy, out vk.Tensor) error {
		t, g := gmm.Tensors{Y: y}, gmm.Gradients{DLoss: dloss}
		t.Logit, t.Mu, t.LogSigma = gmm.Interleaved(out)
		g.DLogit, g.DMu, g.DLogSigma = gmm.Interleaved(dy)
		return gmm.Backward(c, t, g, p.Mixtures(), gmm.Options{Saturate: true})
	}
	heads := opt.perceptrons()
	heads.Workspace = memory
	return wrap(mlp.BackwardLoss(c, mlp.Tensors{X: x, W1: w1, W2: w2}, mlp.Gradients{DX: dx, DW1: dw1, DW2: dw2}, loss, p.Perceptrons(), heads))
}

// ForwardWorkspace returns the bytes of device memory that Forward takes with the same
// options.
func ForwardWorkspace(caps *vk.Caps, p Problem, opt Options) (int64, error) {
	plan, err := newForwardPlan(caps, p, opt)
	return plan.memory.Bytes, err
}

// BackwardWorkspace returns the same of Backward.
func BackwardWorkspace(caps *vk.Caps, p Problem, opt Options) (int64, error) {
	if err := validate(p, opt); err != nil {
		return 0, err
	}
	if err := gmm.Supports(caps, p.Mixtures(), kit.Backward, gmm.Options{}); err != nil {
		return 0, wrap(err)
	}
	plan, err := mlp.ChooseLoss(caps, p.Perceptrons(), opt.perceptrons())
	return plan.Workspace(), wrap(err)
}

// Describe says what runs for a pass, for tables.
func Describe(caps *vk.Caps, p Problem, opt Options, backward bool) (string, error) {
	if backward {
		if err := validate(p, opt); err != nil {
			return "", err
		}
		plan, err := mlp.ChooseLoss(caps, p.Perceptrons(), opt.perceptrons())
		return "outputs in memory: " + plan.String(), wrap(err)
	}
	plan, err := newForwardPlan(caps, p, opt)
	return plan.words, err
}
