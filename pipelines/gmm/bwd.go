package gmm

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Backward computes the gradients of Forward's Loss, times DLoss. With w = exp(log_w) the weight
// of a component, r = exp(log_w + log_n - log_p) its share in the probability of the token (its
// responsibility), z = (y - mu) / sigma, and g = -dloss / tokens,
//
//	dlogit     = g * (r - w)
//	dmu        = g * r * z / sigma
//	dlog_sigma = g * r * (z² - 1)
//
// It reads nothing that Forward wrote: log_p is computed again.
//
// Logit, Mu and LogSigma are (tokens, components) of p.DType, with any strides. DLogit, DMu and
// DLogSigma are the same of p.GradDType(). Y is (tokens) and DLoss (1), float32 and contiguous. A
// gradient that its format cannot hold is infinite, with o.Saturate the largest number of the
// format. With finite inputs nothing is NaN. Where y is so far from every component that log_p is
// -Inf, the component that is nearest in deviations has all of the probability.
//
// Backward records into c and returns; gradients are valid once c has completed, and have memory
// of their own. Errors are as in Forward.
func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	d := c.Device()
	if err := Supports(d.Caps(), p, kit.Backward, o); err != nil {
		return err
	}
	in, y, grad, dloss := t.mixtures(), t.Y, g.mixtures(), g.DLoss
	inputs := append(in.arguments("", &p, p.DType),
		argument.New("y", y, true, dtype.Float32, []int{p.Tokens}),
		argument.New("dloss", dloss, !dloss.IsZero(), dtype.Float32, []int{1}))
	if err := argument.Check("gmm", inputs, grad.arguments("d", &p, p.GradDType())); err != nil {
		return err
	}
	vk.Narrow(&in.logit, &in.mu, &in.logSigma, &y, &dloss, &grad.logit, &grad.mu, &grad.logSigma)
	threads := bwdThreads(d.Caps())
	k := chips.Kernel[bwdParams](c, "gmm_bwd", p.DType.Short(), bwdSpec{threads, !dloss.IsZero(), chips.Format(p.GradDType()), o.Saturate, bwdTeam}, vk.KernelOptions{})
	params := bwdParams{
		Tokens: uint32(p.Tokens), Components: uint32(p.Components),
		Logit: placeOf(in.logit), Mu: placeOf(in.mu), LogSigma: placeOf(in.logSigma),
		YOffset: uint32(y.Offset),
		DLogit:  placeOf(grad.logit), DMu: placeOf(grad.mu), DLogSigma: placeOf(grad.logSigma),
		DLossOffset: uint32(dloss.Offset),
	}
	c.Note(func() vk.Note {
		bytes := vk.Traffic(in.logit, in.mu, in.logSigma, y, grad.logit, grad.mu, grad.logSigma)
		return vk.Note{Text: fmt.Sprintf("%d tokens, %d components", p.Tokens, p.Components), FLOPs: p.BackwardFLOPs(), Bytes: bytes}
	})
	k.Dispatch(c, chips.Groups(d.Caps(), p.Tokens, int(threads/bwdTeam)), params, in.logit, in.mu, in.logSigma, y, or(dloss, y), grad.logit, grad.mu, grad.logSigma)
	return c.Err()
}

// bwdParams is the push-constant block of gmm_bwd.comp.
type bwdParams struct {
	Tokens      uint32 `glsl:"tokens"`
	Components  uint32 `glsl:"components"`
	Logit       place  `glsl:"logit"`
	Mu          place  `glsl:"mu"`
	LogSigma    place  `glsl:"log_sigma"`
	YOffset     uint32 `glsl:"y_offset"`
	DLogit      place  `glsl:"dlogit"`
	DMu         place  `glsl:"dmu"`
	DLogSigma   place  `glsl:"dlog_sigma"`
	DLossOffset uint32 `glsl:"dloss_offset"`
}

// bwdSpec is the specialization of gmm_bwd.comp.
type bwdSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	ReadDLoss     bool   `glsl:"READ_DLOSS"`
	GradFormat    uint32 `glsl:"GRAD_FORMAT"`
	Saturate      bool   `glsl:"SATURATE"`
	Team          uint32 `glsl:"TEAM"`
}
