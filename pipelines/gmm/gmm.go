// Package gmm computes the log-probability of tokens under mixtures of normal
// distributions, one mixture for each token, and its gradients: the loss of a model that
// predicts distributions.
//
//	log_w = log_softmax(logit)
//	log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
//	log_p = logsumexp over components of log_w + log_n
//	loss  = -mean(log_p)
//
//	tensor                                            shape                 format
//	logit, mu, log_sigma                              (tokens, components)  Problem.DType, any strides
//	dlogit, dmu, dlog_sigma                           (tokens, components)  Problem.Grad, likewise
//	y, log_p                                          (tokens)              float32, contiguous
//	loss, dloss                                       (1)                   float32
//
// Logit, mu and log_sigma are often the last axis of one tensor, as a layer writes them:
// [Interleaved] takes it apart without a copy.
//
// Package mixture computes the same of mixtures that the heads of a model make, without
// writing them: [Merge] is the end of that.
//
// Nothing overflows on the way: logits of any size, deviations from exp(-80) to exp(80), a y
// as far away as float32 goes. A result that float32 cannot hold is the infinity that it
// rounds to, never NaN, if the inputs are finite.
//
// The same call on the same device gives the same bits.
//
// The formulas are those of a Gaussian mixture density network (Bishop, Mixture Density
// Networks, 1994).
package gmm

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/argument"
)

// A Problem holds the sizes and the format of a call.
type Problem = ref.Problem

// ErrUnsupported is wrapped by errors about calls that are valid, but that no kernel
// on the device handles.
var ErrUnsupported = vk.ErrUnsupported

// Mixtures are the distributions of all tokens, or gradients by them: tensors (tokens,
// components) with any strides.
type Mixtures struct{ Logit, Mu, LogSigma vk.Tensor }

// Interleaved returns the mixtures in a tensor (tokens, components, 3), whose last
// axis is logit, mu, log sigma.
func Interleaved(p vk.Tensor) Mixtures {
	if len(p.Shape) != 3 || len(p.Strides) != 3 || p.Shape[2] != 3 {
		return Mixtures{p, p, p} // Forward says what is wrong
	}
	part := func(i int) vk.Tensor {
		x := p
		x.Shape, x.Strides, x.Offset = p.Shape[:2:2], p.Strides[:2:2], p.Offset+i*p.Strides[2]
		return x
	}
	return Mixtures{part(0), part(1), part(2)}
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Workspace is memory for Forward and Merge, Workspace bytes of it, that nothing else
	// uses until the commands have completed: a second call in the same Cmd comes after a
	// Barrier. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
	// Saturate makes Backward write the largest numbers instead of infinities: for
	// products with gradients, where an infinity times 0 would be NaN.
	Saturate bool
}

// Supports returns nil if a device can compute p, and otherwise an error: one of
// Problem.Validate, or one that wraps ErrUnsupported and says why not.
func Supports(caps *vk.Caps, p Problem) error {
	if err := p.Validate(); err != nil {
		return err
	}
	switch {
	case !caps.ScalarBlockLayout:
		return fmt.Errorf("gmm: the device has no scalar block layout: %w", ErrUnsupported)
	case min(p.DType.Size(), p.Grad.Size()) == 2 && !caps.Storage16:
		return fmt.Errorf("gmm: the device has no 16-bit storage: %w", ErrUnsupported)
	}
	return nil
}

// arguments returns what is checked of m, tensors of a format: three, or if they are
// interleaved the one that they are parts of, whose parts do share memory.
func (m Mixtures) arguments(prefix string, p *Problem, t dtype.DType) []argument.Argument {
	shape := []int{p.Tokens, p.Components}
	if m.interleaved() {
		whole := m.Logit
		whole.Shape = append(append([]int(nil), whole.Shape...), 3)
		whole.Strides = append(append([]int(nil), whole.Strides...), m.Mu.Offset-m.Logit.Offset)
		return []argument.Argument{argument.New(prefix+"p", whole, true, t, append(shape, 3)).Strided()}
	}
	return []argument.Argument{
		argument.New(prefix+"logit", m.Logit, true, t, shape).Strided(),
		argument.New(prefix+"mu", m.Mu, true, t, shape).Strided(),
		argument.New(prefix+"log_sigma", m.LogSigma, true, t, shape).Strided(),
	}
}

// interleaved reports whether the tensors are what Interleaved returns.
func (m *Mixtures) interleaved() bool {
	same := func(a, b []int) bool { return len(a) == 2 && len(b) == 2 && a[0] == b[0] && a[1] == b[1] }
	step := m.Mu.Offset - m.Logit.Offset
	for _, t := range []*vk.Tensor{&m.Mu, &m.LogSigma} {
		if t.Buffer != m.Logit.Buffer || t.DType != m.Logit.DType || !same(t.Shape, m.Logit.Shape) || !same(t.Strides, m.Logit.Strides) {
			return false
		}
	}
	return step > 0 && m.LogSigma.Offset-m.Mu.Offset == step && !m.Logit.IsZero()
}

// Invocations of a workgroup of Forward, and those of them that have a token together: more of
// them load faster, and merge more. In Backward they also store. TUNING.md has the times.
const (
	fwdThreads = 128
	fwdShare   = 2
	bwdShare   = 4
)

// Describe says how the kernel of a pass goes about it, for tables.
func Describe(backward bool) string {
	share := fwdShare
	if backward {
		share = bwdShare
	}
	return fmt.Sprintf("%d invocations a token", share)
}

// bwdThreads returns the invocations of a workgroup of Backward: a subgroup, whose barriers cost
// little.
func bwdThreads(caps *vk.Caps) uint32 { return max(caps.SubgroupSize, 32) }

// groups returns the workgroups of a call that have so many tokens each, as many as the device
// takes.
func groups(caps *vk.Caps, p *Problem, tokens int) int {
	return min((p.Tokens+tokens-1)/tokens, int(caps.MaxWorkgroupCount[0]))
}

// fwdGroups returns the workgroups of Forward, and of Merge, that add to the loss.
func fwdGroups(caps *vk.Caps, p *Problem) int { return groups(caps, p, fwdThreads/fwdShare) }

// kernel returns the kernel of that name and type.
func kernel[P any](d *vk.Device, name, typ string, spec any) (*vk.Kernel[P], error) {
	module, err := shaders.Get(name, typ)
	if err != nil {
		return nil, err
	}
	return vk.CachedKernel[P](d, module.Name, module.SPIRV, spec, vk.KernelOptions{})
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

// or returns t, or for none the tensor that stands for it: a binding must hold
// something; the kernel does not touch it.
func or(t, instead vk.Tensor) vk.Tensor {
	if t.IsZero() {
		return instead
	}
	return t
}
