package gmm

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/sumrows"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/argument"
)

// Forward computes the log-probability of y under the mixtures in, and minus the mean:
//
//	log_w = log_softmax(logit)
//	log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
//	log_p = logsumexp over components of log_w + log_n
//	loss  = -mean(log_p)
//
// Logit, mu and log_sigma are (tokens, components) of p.DType with any strides, y and
// log_p are (tokens), loss is (1), all float32 and contiguous. A zero Tensor for log_p
// or loss leaves it out. Sums are float32. A log_p below -3.4e38 is -Inf, and so the
// loss +Inf; with finite inputs nothing is NaN.
//
// One kernel computes log_p and, for the loss, a sum for each workgroup; a second, of
// one workgroup, adds those in order. For the loss it needs Workspace bytes of memory:
// opt.Workspace, or memory that belongs to c until it is reset.
//
// Forward records into c and returns; outputs are valid once c has completed, and have
// memory of their own. The inputs must be written and visible by then: after another
// kernel of the same Cmd, a c.Barrier() comes before Forward. It returns an error that
// wraps ErrUnsupported if the device cannot do it, and an error naming the argument if
// a tensor does not fit p.
func Forward(c *vk.Cmd, logP, loss vk.Tensor, in Mixtures, y vk.Tensor, p Problem, opt Options) error {
	d := c.Device()
	if err := Supports(d.Caps(), p); err != nil {
		return err
	}
	inputs := append(in.arguments("", &p, p.DType), argument.New("y", y, true, dtype.Float32, []int{p.Tokens}))
	parts, err := check(c, inputs, logP, loss, &p, &opt)
	if err != nil {
		return err
	}
	k, err := kernel[fwdParams](d, "gmm_fwd", p.DType.Short(), fwdSpec{lossSpec{fwdThreads, !logP.IsZero(), !loss.IsZero()}, fwdShare})
	if err != nil {
		return err
	}
	params := fwdParams{
		Tokens: uint32(p.Tokens), Components: uint32(p.Components),
		Logit: placeOf(in.Logit), Mu: placeOf(in.Mu), LogSigma: placeOf(in.LogSigma),
		YOffset: uint32(y.Offset), LogPOffset: uint32(logP.Offset),
	}
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%d tokens, %d components", p.Tokens, p.Components), FLOPs: p.FLOPs(), Bytes: vk.Traffic(in.Logit, in.Mu, in.LogSigma, y, logP, parts)}
	})
	k.Dispatch(c, vk.Groups{X: uint32(fwdGroups(d.Caps(), &p))}, params, in.Logit, in.Mu, in.LogSigma, y, or(logP, y), or(parts, y))
	return sum(c, loss, parts)
}

// check checks the tensors of a call and returns what workgroups add to its loss.
func check(c *vk.Cmd, inputs []argument.Argument, logP, loss vk.Tensor, p *Problem, opt *Options) (parts vk.Tensor, err error) {
	outputs := []argument.Argument{
		argument.New("log_p", logP, !logP.IsZero(), dtype.Float32, []int{p.Tokens}),
		argument.New("loss", loss, !loss.IsZero(), dtype.Float32, []int{1}),
	}
	if !loss.IsZero() {
		if parts, err = sumrows.Workspace(c, "gmm", opt.Workspace, fwdGroups(c.Device().Caps(), p), 1); err != nil {
			return parts, err
		}
		outputs = append(outputs, argument.New("workspace", parts, true, dtype.Float32, parts.Shape))
	}
	return parts, argument.Check("gmm", inputs, outputs)
}

// sum records the sum of parts, if there is a loss.
func sum(c *vk.Cmd, loss, parts vk.Tensor) error {
	if loss.IsZero() {
		return c.Err()
	}
	c.Barrier() // parts are written
	return sumrows.Record(c, loss, parts)
}

// Workspace returns how many bytes Options.Workspace must have for Forward and for Merge:
// 16 for each 64 tokens.
func Workspace(caps *vk.Caps, p Problem) (int64, error) {
	if err := Supports(caps, p); err != nil {
		return 0, err
	}
	return sumrows.Bytes(fwdGroups(caps, &p), 1), nil
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
}

// fwdSpec is the specialization of gmm_fwd.comp.
type fwdSpec struct {
	lossSpec
	Share uint32 `glsl:"SHARE"`
}

// lossSpec holds the specialization constants of lib/gmm_loss.glsl, all that gmm_merge.comp has.
type lossSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	WriteLogP     bool   `glsl:"WRITE_LOG_P"`
	WriteLoss     bool   `glsl:"WRITE_LOSS"`
}
