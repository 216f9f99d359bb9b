package bench

import (
	"context"
	"strings"

	"github.com/flashvk/flashvk/attention"
)

// A profiledAttention is a path of attention that is profiled.
type profiledAttention struct {
	*attentionRun
	opt    attention.Options
	impl   attention.Impl   // what runs; of both passes that of the forward pass
	config attention.Config // of a forward pass
}

// choose finds out what runs and returns it in words.
func (r *profiledAttention) choose(c Case) (choice string, err error) {
	r.opt = attention.Options{Impl: c.Impls[0], Tuning: c.Tuning}
	caps := r.d.Caps()
	if choice, err = c.Pass.choice(caps, c.Problem, r.opt); err != nil {
		return "", err
	}
	if c.Pass == Backward {
		config, err := attention.ChooseBackward(caps, c.Problem, r.opt)
		r.impl = config.Impl
		return choice, err
	}
	r.config, err = attention.Choose(caps, c.Problem, r.opt)
	r.impl = r.config.Impl
	return choice, err
}

func (r *profiledAttention) check(ctx context.Context, x *Result) (Target, error) {
	return r.attentionRun.check(ctx, r.opt.Impl, r.record(r.opt), x)
}

func (r *profiledAttention) count() int { return len(r.sets) }

// note implements profiled: several dispatches of a kernel share its work.
func (r *profiledAttention) note(list []DispatchProfile) {
	of := map[string]float64{}
	for _, x := range list {
		of[x.Kernel]++
	}
	for i := range list {
		x := &list[i]
		w := workOf(x.Kernel, r.p, r.config)
		x.Note.FLOPs, x.Note.Bytes = w.FLOPs/of[x.Kernel], w.Bytes/of[x.Kernel]
		x.Note.Matrices, x.Note.DType = onMatrices(r.impl), r.p.DType
	}
}

func onMatrices(impl attention.Impl) bool {
	return impl == attention.CoopMat2 || impl == attention.CoopMat
}

// workOf returns what a kernel of a forward pass has to do, by the conventions of
// problem.Problem.FLOPs and Bytes: unmasked entries count, each tensor is read or
// written once. Kernels of the backward pass share its work in ways that the
// conventions do not know.
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
	case strings.HasPrefix(kernel, "attention_fwd_"):
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
