package selftest

import (
	"cmp"
	"context"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/vk/kit"
)

// A suite is that of a pass.
type suite struct {
	pass  bench.Pass
	cases []*attntest.Case                                     // the cheap ones first
	check func(ctx context.Context, g *gate, it *item) outcome // several goroutines call it
}

// suites returns the suites for the device: a software driver has no time for
// the large cases.
func (r *run) suites() []suite {
	set := attntest.Full
	if r.report.Env.CPU {
		set = attntest.Short
	}
	forward := attntest.NewSuite(set, attntest.Reference, attntest.TwicePlain)
	backward := attntest.NewBackwardSuite(set, attntest.BackwardReference, attntest.PlainGradients)
	list := []suite{
		{bench.Forward, forward.Cases, func(ctx context.Context, g *gate, it *item) outcome {
			dev := newOnDevice(ctx, r.d, r.Hang, g, it)
			var got attntest.Forwarder = dev
			if r.forwarder != nil {
				got = r.forwarder(it.impl)
			}
			report, err := forward.Check(it.c, got)
			return outcome{it, max(share(report.O.Off, report.Bound.O), share(report.LSE.Off, report.Bound.LSE)), err, dev.modules}
		}},
		{bench.Backward, backward.Cases, func(ctx context.Context, g *gate, it *item) outcome {
			dev := newOnDevice(ctx, r.d, r.Hang, g, it)
			report, err := backward.Check(it.c, dev)
			o := outcome{it, 0, err, dev.modules}
			for _, x := range report {
				o.worst = max(o.worst, share(x.Diff.Off, x.Bound))
			}
			return o
		}},
	}
	for i := range list {
		s := &list[i]
		s.cases = slices.Clone(s.cases)
		slices.SortStableFunc(s.cases, func(a, b *attntest.Case) int { return cmp.Compare(a.FLOPs(), b.FLOPs()) })
		if r.most > 0 {
			s.cases = s.cases[:r.most]
		}
	}
	return list
}

// share returns an error by its bound, 0 if nothing is allowed.
func share(off, bound float64) float64 {
	if bound == 0 {
		return 0
	}
	return off / bound
}

// refuses returns why a path does not take a case.
func (r *run) refuses(pass bench.Pass, impl attention.Impl, c *attntest.Case) error {
	switch {
	case pass == bench.Backward:
		if err := backwardCompilesSoon(r.d.Caps(), impl, c.Problem); err != nil {
			return err
		}
		return attention.Supports(r.d.Caps(), c.Problem, kit.Backward, attention.Options{Impl: impl})
	case r.forwarder != nil:
		return nil
	}
	return forwardRefuses(r.d.Caps(), impl, c.Problem)
}
