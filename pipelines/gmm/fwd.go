package gmm

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/sumrows"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Forward computes the log-probability of Y under the mixtures, and the mean of its opposite:
//
//	log_w = log_softmax(logit)
//	log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
//	log_p = logsumexp over components of log_w + log_n
//	loss  = -mean(log_p)
//
// Logit, Mu and LogSigma are (tokens, components) of p.DType with any strides. Y and LogP are
// (tokens) and Loss is (1), float32 and contiguous. Sums are float32. A log_p below -3.4e38 is
// -Inf, and the loss is +Inf then. With finite inputs nothing is NaN.
//
// One kernel computes log_p and, for the loss, a sum of each workgroup. Its last workgroup to
// finish adds these sums in order. They lie in Workspace bytes of memory: o.Workspace, or memory
// of c (vk.Cmd.Scratch).
//
// Forward records into c and returns; outputs are valid once c has completed, and have memory of
// their own. It returns an error that wraps vk.ErrUnsupported if the device cannot do it, and an
// error naming the tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	d := c.Device()
	if err := Supports(d.Caps(), p, kit.Forward, o); err != nil {
		return err
	}
	in, y, logP, loss := t.mixtures(), t.Y, t.LogP, t.Loss
	inputs := append(in.arguments("", &p, p.DType), argument.New("y", y, true, dtype.Float32, []int{p.Tokens}))
	parts, count, err := check(c, inputs, logP, loss, &p, &o)
	if err != nil {
		return err
	}
	vk.Narrow(&in.logit, &in.mu, &in.logSigma, &y, &logP, &loss)
	k := chips.Kernel[fwdParams](c, "gmm_fwd", p.DType.Short(), fwdSpec{lossSpec{fwdThreads, !logP.IsZero(), !loss.IsZero()}, fwdTeam}, vk.KernelOptions{})
	params := fwdParams{
		Tokens: uint32(p.Tokens), Components: uint32(p.Components),
		Logit: placeOf(in.logit), Mu: placeOf(in.mu), LogSigma: placeOf(in.logSigma),
		YOffset: uint32(y.Offset), LogPOffset: uint32(logP.Offset), LossOffset: uint32(loss.Offset),
	}
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%d tokens, %d components", p.Tokens, p.Components), FLOPs: p.FLOPs(), Bytes: vk.Traffic(in.logit, in.mu, in.logSigma, y, logP, parts)}
	})
	k.Dispatch(c, fwdGroups(d.Caps(), &p), params, in.logit, in.mu, in.logSigma, y, or(logP, parts, y), or(parts, logP, y), or(loss, logP, y), or(count, logP, y))
	return c.Err()
}

// check checks the tensors of a call. It returns memory for the sums of workgroups and for the
// count of finished ones, zero tensors without a loss.
func check(c *vk.Cmd, inputs []argument.Argument, logP, loss vk.Tensor, p *Problem, o *Options) (parts, count vk.Tensor, err error) {
	outputs := []argument.Argument{
		argument.New("log_p", logP, !logP.IsZero(), dtype.Float32, []int{p.Tokens}),
		argument.New("loss", loss, !loss.IsZero(), dtype.Float32, []int{1}),
	}
	if loss.IsZero() {
		return parts, count, argument.Check("gmm", inputs, outputs)
	}
	if parts, err = sumrows.Open(c, "gmm", o.Workspace, int(fwdGroups(c.Device().Caps(), p).X), 1, inputs, outputs); err != nil {
		return parts, count, err
	}
	return parts, vk.View(c.Zeros("gmm.count", 4), dtype.Int32, 1).Narrow(), c.Err()
}

// fwdParams is the push-constant block of gmm_fwd.comp.
type fwdParams struct {
	Tokens     uint32 `glsl:"tokens"`
	Components uint32 `glsl:"components"`
	Logit      place  `glsl:"logit"`
	Mu         place  `glsl:"mu"`
	LogSigma   place  `glsl:"log_sigma"`
	YOffset    uint32 `glsl:"y_offset"`
	LogPOffset uint32 `glsl:"log_p_offset"`
	LossOffset uint32 `glsl:"loss_offset"`
}

// fwdSpec is the specialization of gmm_fwd.comp.
type fwdSpec struct {
	lossSpec
	Team uint32 `glsl:"TEAM"`
}

// lossSpec holds the specialization constants of lib/gmm_loss.glsl. gmm_merge.comp has no others.
type lossSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	WriteLogP     bool   `glsl:"WRITE_LOG_P"`
	WriteLoss     bool   `glsl:"WRITE_LOSS"`
}

// StateSize is how many float32 the state of a mixture has while some of its components are still
// to come, as in shaders/lib/gmm.glsl. With a = logit - q - log_sigma and q = ((y - mu) /
// exp(log_sigma))² / 2 of a component:
//
//	0     the largest logit
//	1     sum of exp(logit - largest logit)
//	2     sum of exp(a - largest a)
//	3..6  of the largest a: logit, q, log(|y - mu| / exp(log_sigma)) if q is infinite, log_sigma
//	7     0
const StateSize = 8

// Merge computes what Forward does from the states of groups of components. Package mixture runs
// it behind its own kernel. Any kernel that makes components and does not write them can do so:
//
//	log_p = log-probability of y under the components of all groups
//	loss  = -mean(log_p)
//
// States is (groups, tokens, StateSize), float32. Its last axis is contiguous; its offset and its
// other strides are multiples of 4 elements. T.LogP is (tokens) and t.Loss (1), as in Forward.
// Merge ignores the other tensors of t, and all of p but the tokens. Groups are merged in their
// order.
//
// Merge records into c and returns, needs memory, and returns errors as Forward does.
func Merge(c *vk.Cmd, states vk.Tensor, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	d := c.Device()
	logP, loss := t.LogP, t.Loss
	if err := Supports(d.Caps(), p, kit.Forward, o); err != nil {
		return err
	}
	if len(states.Shape) != 3 {
		return fmt.Errorf("gmm: states has shape %v, want [groups %d %d]", states.Shape, p.Tokens, StateSize)
	}
	count := states.Shape[0]
	inputs := []argument.Argument{argument.New("states", states, true, dtype.Float32, []int{count, p.Tokens, StateSize})}
	parts, sharers, err := check(c, inputs, logP, loss, &p, &o)
	if err != nil {
		return err
	}
	if states.Offset%4 != 0 || states.Strides[0]%4 != 0 || states.Strides[1]%4 != 0 {
		return fmt.Errorf("gmm: states has offset %d and strides %v: not multiples of 4 elements", states.Offset, states.Strides)
	}
	vk.Narrow(&states, &logP, &loss)
	k := chips.Kernel[mergeParams](c, "gmm_merge", "", lossSpec{fwdThreads / fwdTeam, !logP.IsZero(), !loss.IsZero()}, vk.KernelOptions{})
	params := mergeParams{
		Tokens: uint32(p.Tokens), Groups: uint32(count),
		Offset: uint32(states.Offset), StrideG: uint32(states.Strides[0]), StrideT: uint32(states.Strides[1]),
		LogPOffset: uint32(logP.Offset), LossOffset: uint32(loss.Offset),
	}
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%d tokens, %d groups", p.Tokens, count), Bytes: vk.Traffic(states, logP, parts)}
	})
	k.Dispatch(c, fwdGroups(d.Caps(), &p), params, states, or(logP, parts, states), or(parts, logP, states), or(loss, logP, states), or(sharers, logP, states))
	return c.Err()
}

// mergeParams is the push-constant block of gmm_merge.comp.
type mergeParams struct {
	Tokens     uint32 `glsl:"tokens"`
	Groups     uint32 `glsl:"groups"`
	Offset     uint32 `glsl:"offset"` // elements, like all that follow
	StrideG    uint32 `glsl:"stride_g"`
	StrideT    uint32 `glsl:"stride_t"`
	LogPOffset uint32 `glsl:"log_p_offset"`
	LossOffset uint32 `glsl:"loss_offset"`
}
