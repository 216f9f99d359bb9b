package gmm

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

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
	k, err := kernel[mergeParams](d, "gmm_merge", "", lossSpec{fwdThreads / fwdShare, !logP.IsZero(), !loss.IsZero()})
	if err != nil {
		return err
	}
	params := mergeParams{
		Tokens: uint32(p.Tokens), Groups: uint32(count),
		Offset: uint32(states.Offset), StrideG: uint32(states.Strides[0]), StrideT: uint32(states.Strides[1]),
		LogPOffset: uint32(logP.Offset), LossOffset: uint32(loss.Offset),
	}
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%d tokens, %d groups", p.Tokens, count), Bytes: vk.Traffic(states, logP, parts)}
	})
	k.Dispatch(c, vk.Groups{X: uint32(fwdGroups(d.Caps(), &p))}, params, states, or(logP, parts, states), or(parts, logP, states), or(loss, logP, states), or(sharers, logP, states))
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
