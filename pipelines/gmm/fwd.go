package gmm

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
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
	k, err := kernel[fwdParams](d, "gmm_fwd", p.DType.Short(), fwdSpec{lossSpec{fwdThreads, !logP.IsZero(), !loss.IsZero()}, fwdShare})
	if err != nil {
		return err
	}
	params := fwdParams{
		Tokens: uint32(p.Tokens), Components: uint32(p.Components),
		Logit: placeOf(in.logit), Mu: placeOf(in.mu), LogSigma: placeOf(in.logSigma),
		YOffset: uint32(y.Offset), LogPOffset: uint32(logP.Offset), LossOffset: uint32(loss.Offset),
	}
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%d tokens, %d components", p.Tokens, p.Components), FLOPs: p.FLOPs(), Bytes: vk.Traffic(in.logit, in.mu, in.logSigma, y, logP, parts)}
	})
	k.Dispatch(c, vk.Groups{X: uint32(fwdGroups(d.Caps(), &p))}, params, in.logit, in.mu, in.logSigma, y, or(logP, parts, y), or(parts, logP, y), or(loss, logP, y), or(count, logP, y))
	return c.Err()
}

// check checks the tensors of a call. It returns memory for the sums of workgroups and for the
// count of finished ones, zero tensors without a loss.
func check(c *vk.Cmd, inputs []argument.Argument, logP, loss vk.Tensor, p *Problem, o *Options) (parts, count vk.Tensor, err error) {
	outputs := []argument.Argument{
		argument.New("log_p", logP, !logP.IsZero(), dtype.Float32, []int{p.Tokens}),
		argument.New("loss", loss, !loss.IsZero(), dtype.Float32, []int{1}),
	}
	if !loss.IsZero() {
		if parts, err = sumrows.Workspace(c, "gmm", o.Workspace, fwdGroups(c.Device().Caps(), p), 1); err != nil {
			return parts, count, err
		}
		count = vk.View(c.Zeros("gmm.count", 4), dtype.Int32, 1).Narrow()
		outputs = append(outputs, argument.New("workspace", parts, true, dtype.Float32, parts.Shape))
	}
	return parts, count, argument.Check("gmm", inputs, outputs)
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
	Share uint32 `glsl:"SHARE"`
}

// lossSpec holds the specialization constants of lib/gmm_loss.glsl. gmm_merge.comp has no others.
type lossSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	WriteLogP     bool   `glsl:"WRITE_LOG_P"`
	WriteLoss     bool   `glsl:"WRITE_LOSS"`
}
