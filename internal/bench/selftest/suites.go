package selftest

import (
	"cmp"
	"context"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/vk/kit"
)

// The kernels that have suites.
const (
	attentionKernel = "attention"
	decodeKernel    = "decode"
	appendKernel    = "append"
	stepKernel      = "step"
)

// A testCase is a case of a suite.
type testCase struct {
	name      string
	dtype     dtype.DType
	cost      float64
	attention *attntest.Case
	fixed     trial.Problem
}

// A suite tests a pass of attention, or another kernel.
type suite struct {
	kernel string
	pass   bench.Pass
	impls  []attention.Impl // paths of the kernel; nil: all
	cases  []*testCase      // the cheap ones first
	// check returns the largest error by what is allowed. Several goroutines call it.
	check func(ctx context.Context, on *trial.Runner, it *item) (worst float64, err error)
}

// suites returns the suites for the device. A software driver would take too long for the large
// cases.
func (r *run) suites() []suite {
	set := attntest.Full
	if r.report.Env.CPU {
		set = attntest.Short
	}
	forward := attntest.NewSuiteOf(sampled(attntest.Cases(set))...)
	backward := attntest.NewBackwardSuiteOf(nil, sampled(attntest.BackwardCases(set))...)
	list := []suite{
		{attentionKernel, bench.Forward, nil, ofAttention(forward.Cases), func(ctx context.Context, on *trial.Runner, it *item) (float64, error) {
			var got attntest.Forwarder = onDevice(ctx, on, it)
			if r.forwarder != nil {
				got = r.forwarder(it.impl)
			}
			report, err := forward.Check(it.c.attention, got)
			return max(share(report.O.Off, report.Bound.O), share(report.LSE.Off, report.Bound.LSE)), err
		}},
		{attentionKernel, bench.Backward, nil, ofAttention(backward.Cases), func(ctx context.Context, on *trial.Runner, it *item) (float64, error) {
			report, err := backward.Check(it.c.attention, onDevice(ctx, on, it))
			worst := 0.0
			for _, x := range report {
				worst = max(worst, share(x.Diff.Off, x.Bound))
			}
			return worst, err
		}},
	}
	if r.forwarder == nil { // with a forwarder only attention is tested
		for _, impl := range []attention.Impl{attention.CoopMat, attention.Scalar} {
			list = append(list, suite{decodeKernel, bench.Forward, []attention.Impl{impl}, ofTrial(trial.FixedDecode(impl)), checkFixed},
				suite{stepKernel, bench.Forward, []attention.Impl{impl}, ofTrial(trial.FixedStep(impl)), checkFixed})
		}
		list = append(list, suite{appendKernel, bench.Forward, []attention.Impl{attention.Scalar}, ofTrial(trial.FixedAppend()), checkFixed})
	}
	for i := range list {
		s := &list[i]
		slices.SortStableFunc(s.cases, func(a, b *testCase) int { return cmp.Compare(a.cost, b.cost) })
		if r.most > 0 {
			s.cases = s.cases[:r.most]
		}
	}
	return list
}

// sampleCost is what the reference of a case may cost in operations, a second of a core. The forty
// largest cases are compared on a sample of rows and keys: whole they take more time of cores than
// all others together.
const sampleCost = 1e9

func sampled(cases []*attntest.Case) []*attntest.Case {
	for _, c := range cases {
		c.Sample = sampleCost
	}
	return cases
}

func ofAttention(cases []*attntest.Case) (list []*testCase) {
	for _, c := range cases {
		list = append(list, &testCase{name: c.Name, dtype: c.Problem.DType, cost: c.FLOPs(), attention: c})
	}
	return list
}

func ofTrial(cases []trial.Fixed) (list []*testCase) {
	for _, c := range cases {
		list = append(list, &testCase{name: c.Name, dtype: c.DType, cost: c.Cost, fixed: c.Problem})
	}
	return list
}

// checkFixed runs a problem of another kernel than attention.
func checkFixed(ctx context.Context, on *trial.Runner, it *item) (float64, error) {
	return 0, it.c.fixed.Check(ctx, on)
}

// share returns an error divided by its bound; 0 if the bound is 0.
func share(off, bound float64) float64 {
	if bound == 0 {
		return 0
	}
	return off / bound
}

// refuses returns why a path does not take a case.
func (r *run) refuses(s *suite, impl attention.Impl, c *testCase) error {
	switch {
	case s.kernel != attentionKernel:
		return c.fixed.Supports(r.d.Caps())
	case s.pass == bench.Backward:
		if err := backwardCompilesSoon(r.d.Caps(), impl, c.attention.Problem); err != nil {
			return err
		}
		return attention.Supports(r.d.Caps(), c.attention.Problem, kit.Backward, attention.Options{Impl: impl})
	case r.forwarder != nil:
		return nil
	}
	return forwardRefuses(r.d.Caps(), impl, c.attention.Problem)
}
