package bench

import (
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Note says what the dispatches of a call do. Several dispatches of a kernel share its work.
func (o *AttentionOp) Note(caps *vk.Caps, impl string, p Pass, list []DispatchProfile) error {
	opt, err := o.options(impl, p)
	if err != nil {
		return err
	}
	pass := kit.Forward // of both passes that
	if p == Backward {
		pass = kit.Backward
	}
	plan, err := attention.Choose(caps, o.p, pass, opt)
	if err != nil {
		return err
	}
	path := plan.Config.Impl
	switch {
	case p == Backward:
		path = plan.Backward.Impl
	case path == attention.Auto: // on the kernels of Decode
		path = plan.Decode.Impl
	}
	of := map[string]float64{}
	for _, x := range list {
		of[x.Kernel]++
	}
	for i := range list {
		x := &list[i]
		w := workOf(x.Kernel, o.p, plan.Config)
		x.Note.FLOPs, x.Note.Bytes = w.FLOPs/of[x.Kernel], w.Bytes/of[x.Kernel]
		x.Note.Matrices, x.Note.DType = path == attention.CoopMat2 || path == attention.CoopMat, o.p.DType
	}
	return nil
}

// workOf returns the work of a kernel of a forward pass, by the conventions of
// attention.Problem.FLOPs and Bytes: unmasked entries count, each tensor is read or written once.
// The conventions do not say how kernels of the backward pass share its work.
func workOf(kernel string, p attention.Problem, c attention.Config) Work {
	size := float64(p.DType.Size())
	q, k, v := float64(elements(p.QShape())), float64(elements(p.KShape())), float64(elements(p.VShape()))
	o, lse := float64(elements(p.OShape())), 4*float64(elements(p.LSEShape()))
	scores := 4 * float64(p.Batch) * float64(p.NumHeads) * float64(p.SeqQ) * float64(p.SeqKV)
	dims := float64(p.HeadDim + p.ValueHeadDim())
	partial := float64(c.Splits) * (4*o + 2*lse)
	switch {
	case strings.HasPrefix(kernel, "attention_fwd_") && c.Splits > 1:
		return Work{flops(p), size*(q+k+v) + partial}
	case strings.HasPrefix(kernel, "attention_fwd_"), strings.HasPrefix(kernel, "attention_decode"):
		return Work{flops(p), p.Bytes()}
	case strings.HasPrefix(kernel, "attention_combine"):
		return Work{0, partial + size*o + lse}
	case strings.HasPrefix(kernel, "attention_unfused_scores"):
		return Work{flops(p) * float64(p.HeadDim) / dims, size*(q+k) + scores}
	case strings.HasPrefix(kernel, "attention_unfused_softmax"):
		return Work{0, 2*scores + lse}
	case strings.HasPrefix(kernel, "attention_unfused_values"):
		return Work{flops(p) * float64(p.ValueHeadDim()) / dims, size*(v+o) + scores}
	}
	return Work{}
}
