// Package gmm computes the log-probability of tokens under mixtures of normal distributions, one
// mixture for each token, and its gradients: the loss of a model that predicts distributions.
//
//	log_w = log_softmax(logit)
//	log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
//	log_p = logsumexp over components of log_w + log_n
//	loss  = -mean(log_p)
//
//	tensor                                            shape                 format
//	Logit, Mu, LogSigma                               (tokens, components)  Problem.DType, any strides
//	DLogit, DMu, DLogSigma                            (tokens, components)  Problem.Grad, likewise
//	Y, LogP                                           (tokens)              float32, contiguous
//	Loss, DLoss                                       (1)                   float32
//
// A layer often writes logit, mu and log_sigma as the last axis of one tensor. [Interleaved]
// returns views of the three, without a copy.
//
// Package mixture computes the same for mixtures whose components are the heads of a model, and
// does not write the components. The forward pass of mixture ends with [Merge].
//
// Nothing overflows on the way for logits of any size, deviations from exp(-80) to exp(80), and
// any finite y. A result that float32 cannot hold is the infinity that it rounds to, never NaN,
// if the inputs are finite.
//
// The same call on the same device gives the same bits.
//
// Several goroutines may call the functions. A vk.Cmd belongs to one of them.
//
// The formulas define a Gaussian mixture density network (Bishop, Mixture Density Networks, 1994).
package gmm

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/sumrows"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Tensors are what Forward reads and writes; Backward reads the first four.
type Tensors struct {
	Logit, Mu, LogSigma vk.Tensor
	Y                   vk.Tensor
	LogP, Loss          vk.Tensor // written; either may be left out
}

// Gradients are what Backward reads and writes: DLoss, the gradient of what follows by the loss,
// is read.
type Gradients struct {
	DLoss                  vk.Tensor // may be left out: 1
	DLogit, DMu, DLogSigma vk.Tensor
}

// Interleaved returns views of a tensor (tokens, components, 3), whose last axis is logit, mu,
// log sigma.
func Interleaved(x vk.Tensor) (logit, mu, logSigma vk.Tensor) {
	if len(x.Shape) != 3 || len(x.Strides) != 3 || x.Shape[2] != 3 {
		return x, x, x // Forward says what is wrong
	}
	part := func(i int) vk.Tensor {
		y := x
		y.Shape, y.Strides, y.Offset = x.Shape[:2:2], x.Strides[:2:2], x.Offset+i*x.Strides[2]
		return y
	}
	return part(0), part(1), part(2)
}

// mixtures are the distributions of all tokens, or the gradients by them.
type mixtures struct{ logit, mu, logSigma vk.Tensor }

func (t *Tensors) mixtures() mixtures   { return mixtures{t.Logit, t.Mu, t.LogSigma} }
func (g *Gradients) mixtures() mixtures { return mixtures{g.DLogit, g.DMu, g.DLogSigma} }

// Options modify a call. The zero value is the default.
type Options struct {
	// Workspace is memory for Forward and Merge, at least as many bytes as the function Workspace
	// says. Its content is lost. Calls that share it run one after the other. Nil takes memory of
	// the Cmd.
	Workspace *vk.Buffer
	// Saturate makes Backward write the largest number instead of an infinity. In a product with
	// gradients, an infinity times 0 would be NaN.
	Saturate bool
}

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct {
	pass  kit.Pass
	bytes int64
}

// String names the choices in a few words.
func (p Plan) String() string {
	team := fwdTeam
	if p.pass == kit.Backward {
		team = bwdTeam
	}
	return fmt.Sprintf("%d invocations a token", team)
}

// Workspace is how many bytes of memory a call needs for the loss: Forward and Merge the same,
// Backward none.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the modules that run, in order.
func (p Plan) Kernels() []string {
	if p.pass == kit.Backward {
		return []string{"gmm_bwd"}
	}
	return []string{"gmm_fwd"}
}

// Choose returns how p would run on a device. Errors about p are as in Forward and Backward.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, _ Options) (Plan, error) {
	plan := Plan{pass: pass}
	if err := cmp.Or(p.Validate(), argument.Pass("gmm", pass)); err != nil {
		return plan, err
	}
	if err := argument.Storage("gmm", caps, p.DType, p.GradDType()); err != nil {
		return plan, err
	}
	if pass == kit.Forward {
		plan.bytes = sumrows.Bytes(int(fwdGroups(caps, &p).X), 1)
	}
	return plan, nil
}

// Supports returns nil if the device can compute p, and otherwise an error: one of
// Problem.Validate, or one that wraps vk.ErrUnsupported and says why not.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns how many bytes Options.Workspace must have: 16 for each workgroup of Forward
// and Merge, 0 for Backward. Errors are as in Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	plan, err := Choose(caps, p, pass, o)
	return plan.bytes, err
}

// arguments returns what is checked of m. Interleaved tensors share memory, so they are checked
// as the one tensor that they are views of.
func (m mixtures) arguments(prefix string, p *Problem, t dtype.DType) []argument.Argument {
	shape := []int{p.Tokens, p.Components}
	if m.interleaved() {
		whole := m.logit
		whole.Shape = append(append([]int(nil), whole.Shape...), 3)
		whole.Strides = append(append([]int(nil), whole.Strides...), m.mu.Offset-m.logit.Offset)
		return []argument.Argument{argument.New(prefix+"p", whole, true, t, append(shape, 3)).Strided()}
	}
	return []argument.Argument{
		argument.New(prefix+"logit", m.logit, true, t, shape).Strided(),
		argument.New(prefix+"mu", m.mu, true, t, shape).Strided(),
		argument.New(prefix+"log_sigma", m.logSigma, true, t, shape).Strided(),
	}
}

// interleaved reports whether the tensors are what Interleaved returns.
func (m *mixtures) interleaved() bool {
	same := func(a, b []int) bool { return len(a) == 2 && len(b) == 2 && a[0] == b[0] && a[1] == b[1] }
	step := m.mu.Offset - m.logit.Offset
	for _, t := range []*vk.Tensor{&m.mu, &m.logSigma} {
		if t.Buffer != m.logit.Buffer || t.DType != m.logit.DType || !same(t.Shape, m.logit.Shape) || !same(t.Strides, m.logit.Strides) {
			return false
		}
	}
	return step > 0 && m.logSigma.Offset-m.mu.Offset == step && !m.logit.IsZero()
}

// fwdThreads are the invocations of a workgroup of Forward. fwdTeam and bwdTeam are how many of
// them have a token together, in Forward and in Backward: more of them load faster (in Backward
// store, too), and merge more. TUNING.md has the times.
const (
	fwdThreads = 128
	fwdTeam    = 2
	bwdTeam    = 4
)

// bwdThreads returns the invocations of a workgroup of Backward. It is a subgroup, since its
// barriers cost little.
func bwdThreads(caps *vk.Caps) uint32 { return max(caps.SubgroupSize, 32) }

// fwdGroups returns the workgroups of Forward and of Merge. Each has a sum of the loss.
func fwdGroups(caps *vk.Caps, p *Problem) vk.Groups {
	return chips.Groups(caps, p.Tokens, fwdThreads/fwdTeam)
}

// place is where a tensor of a mixture lies.
type place struct {
	Offset  uint32 `glsl:"offset"` // elements, like all that follow
	StrideT uint32 `glsl:"stride_t"`
	StrideK uint32 `glsl:"stride_k"`
}

func placeOf(t vk.Tensor) place {
	return place{uint32(t.Offset), uint32(t.Strides[0]), uint32(t.Strides[1])}
}

// or returns t, or the first tensor of instead that is not zero. A binding must hold something,
// but the kernel does not touch it. An output is replaced by another output: the kernel counts as
// writing that already.
func or(t vk.Tensor, instead ...vk.Tensor) vk.Tensor {
	if t.IsZero() {
		return or(instead[0], instead[1:]...)
	}
	return t
}

// A Problem holds the sizes and formats of a call.
type Problem struct {
	Tokens     int
	Components int          // of the mixture of a token
	DType      dtype.DType  // of logit, mu and log sigma
	Grad       dtype.Option // of their gradients; the zero value is DType
}

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Tokens <= 0:
		return fmt.Errorf("gmm: tokens=%d is not positive", p.Tokens)
	case p.Components <= 0:
		return fmt.Errorf("gmm: components=%d is not positive", p.Components)
	case float64(p.Tokens)*float64(p.Components) > math.MaxUint32/3:
		return fmt.Errorf("gmm: tokens=%d by components=%d are more than %d", p.Tokens, p.Components, uint32(math.MaxUint32/3))
	case !p.DType.Float():
		return fmt.Errorf("gmm: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	case !p.GradDType().Float():
		return fmt.Errorf("gmm: grad=%v is not one of float32, float16, bfloat16", p.GradDType())
	}
	return nil
}

// GradDType returns the format of the gradients.
func (p Problem) GradDType() dtype.DType { return p.Grad.Or(p.DType) }

// FLOPs returns the operations of the forward pass: 14 for each component of a token, as the
// formulas are written, with an exponential or a logarithm as one.
func (p Problem) FLOPs() float64 { return 14 * float64(p.Tokens) * float64(p.Components) }

// BackwardFLOPs returns the operations of the backward pass: 24 for each component of a token.
func (p Problem) BackwardFLOPs() float64 { return 24 * float64(p.Tokens) * float64(p.Components) }

// Bytes returns the least memory traffic of the forward pass: mixtures and y are read, log_p and
// the loss written.
func (p Problem) Bytes() float64 { return p.mixtureBytes(p.DType) + 8*float64(p.Tokens) + 4 }

// BackwardBytes returns the memory traffic of the backward pass: mixtures and y are read, gradients written.
func (p Problem) BackwardBytes() float64 {
	return p.mixtureBytes(p.DType) + p.mixtureBytes(p.GradDType()) + 4*float64(p.Tokens)
}

// mixtureBytes returns the bytes of mixtures in a format: three numbers for each component.
func (p Problem) mixtureBytes(t dtype.DType) float64 {
	return 3 * float64(p.Tokens) * float64(p.Components) * float64(t.Size())
}

// String describes the problem in a few words.
func (p Problem) String() string {
	s := fmt.Sprintf("%d tokens, %d components, %v", p.Tokens, p.Components, p.DType)
	if p.GradDType() != p.DType {
		s += fmt.Sprintf(", gradients %v", p.GradDType())
	}
	return s
}
