package selftest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/internal/text"
)

// A Verdict is what to think of a path.
type Verdict string

// The verdicts.
const (
	Pass        Verdict = "pass"
	Slow        Verdict = "slow"
	Wrong       Verdict = "WRONG"
	Hung        Verdict = "HUNG"
	Lost        Verdict = "LOST"
	Unsupported Verdict = "not supported"
	NotRun      Verdict = "not run"
)

// A Path is the outcome for a path, a pass or another kernel, and a format.
type Path struct {
	What    string // forward, backward, decode, step or append
	Impl    attention.Impl
	DType   dtype.DType
	Verdict Verdict
	Why     string // the reason of the verdict: the first wrong case, or what the device lacks

	Right, Bad, Left int     // cases; Left were not run for lack of time
	Refused          int     // cases that this path does not take
	Worst            float64 // largest error by what is allowed
	Speed            float64 // the scalar path's time divided by this path's; 0: not measured
}

// conclude gives a verdict to a path that has none.
func (p *Path) conclude() {
	switch {
	case p.Verdict != "":
	case p.Right == 0 && p.Left > 0:
		p.Verdict, p.Why = NotRun, fmt.Sprintf("there was no time for any of %d cases", p.Left)
	case p.Right == 0:
		p.Verdict, p.Why = NotRun, "the test ended before"
	default:
		p.Verdict = Pass
	}
}

// A Report is the outcome for a device.
type Report struct {
	Env      bench.Environment
	Record   *conformance.Record // what ran
	Ceilings []bench.Ceiling
	Paths    []*Path
	Took     time.Duration
}

// Err returns an error that names the first path that must not be used.
func (r *Report) Err() error {
	var failed []*Path
	for _, p := range r.Paths {
		if p.Verdict == Wrong || p.Verdict == Hung || p.Verdict == Lost {
			failed = append(failed, p)
		}
	}
	if failed == nil {
		return nil
	}
	p := failed[0]
	return fmt.Errorf("%d of %d paths must not be used, the first %v %s for %v: %s: %s", len(failed), len(r.Paths), p.Impl, p.What, p.DType, p.Verdict, p.Why)
}

// Sheet shows r.
func (r *Report) Sheet() sheet.Sheet {
	s := r.Env.Sheet()
	s.Sections = []sheet.Section{bench.CeilingSection(r.Ceilings), r.pathSection()}
	return s
}

func (r *Report) pathSection() sheet.Section {
	var s sheet.Section
	s.Add("cases", "of the conformance suite: right; wrong; that the path refuses; that there was no time for")
	s.Add("error", "the largest error over its limit, which is twice the error of the plain formula in the same format")
	s.Add("speed", "the time of the scalar path over the time of this path")
	s.Columns = sheet.Columns([]string{"path", "pass", "type", "verdict", "right", "wrong", "refused", "left", "error", "speed"}, "path", "pass", "type", "verdict")
	left, none := 0, 0
	for _, p := range r.Paths {
		row := []string{p.Impl.String(), p.What, p.DType.String(), string(p.Verdict)}
		if p.Verdict == Unsupported {
			row = append(row, "-", "-", "-", "-", "-", "-")
		} else {
			row = append(row, fmt.Sprint(p.Right), fmt.Sprint(p.Bad), fmt.Sprint(p.Refused), fmt.Sprint(p.Left), number("%.2f", p.Worst), number("%.2fx", p.Speed))
		}
		s.Rows = append(s.Rows, row)
		left += p.Left
		if p.Verdict == NotRun && p.Left > 0 {
			none++ // such rows are one line below
		} else if p.Why != "" {
			s.Note("%v %s, %v: %s: %s", p.Impl, p.What, p.DType, p.Verdict, text.Line(p.Why))
		}
	}
	for _, c := range r.Ceilings {
		if c.Wrong != nil {
			s.Note("the device multiplies wrongly: see the loop %q above; a path on such matrices cannot be right", c.Name)
		}
	}
	switch {
	case none > 0:
		s.Note("there was no time for %d cases, among them all cases of %d paths: a larger --budget runs them", left, none)
	case left > 0:
		s.Note("there was no time for %d cases: a larger --budget runs them", left)
	}
	s.Note("took %v", r.Took.Round(time.Second/10))
	return s
}

// number formats x, 0 as a dash.
func number(format string, x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf(format, x)
}

// Summary says in a line how many cases were wrong.
func (r *Report) Summary() string {
	var all Path
	for _, p := range r.Paths {
		all.Right, all.Bad, all.Left = all.Right+p.Right, all.Bad+p.Bad, all.Left+p.Left
	}
	s := fmt.Sprintf("%d wrong of %d cases", all.Bad, all.Right+all.Bad)
	if all.Left > 0 {
		s += fmt.Sprintf(", no time for %d", all.Left)
	}
	return s
}

// quick is the protocol of what is timed here.
func quick(cpu bool) bench.Protocol {
	pr := bench.DefaultProtocol(cpu)
	pr.Samples, pr.SampleTime, pr.WallTime = 5, pr.SampleTime/4, -1
	return pr
}

// slowBelow is the speed below which a path on matrices is suspicious. Matrix
// units are at least twice as fast as other arithmetic in every device that has
// them; an emulation is slower.
const slowBelow = 1.3

// speeds times the forward pass of each path that passed beside the scalar one.
func (r *run) speeds(ctx context.Context) error {
	for _, t := range formats {
		if time.Since(r.start) > r.Budget {
			return nil
		}
		var impls []string
		for _, p := range r.report.Paths {
			if p.What == "forward" && p.DType == t && p.Verdict == Pass {
				impls = append(impls, p.Impl.String())
			}
		}
		if len(impls) < 2 || !slices.Contains(impls, attention.Scalar.String()) {
			continue
		}
		r.step(fmt.Sprintf("speed of %v", t))
		problem := speedProblem(r.report.Env.CPU, t)
		op, err := kernels.Attention(problem)
		if err != nil {
			return err
		}
		results, err := bench.Run(ctx, r.d, bench.Case{Op: op, Impls: impls, Protocol: quick(r.report.Env.CPU)}, nil)
		if err != nil {
			return err
		}
		r.report.compare(problem, results)
	}
	return nil
}

func speedProblem(cpu bool, t dtype.DType) attention.Problem {
	p := attention.Problem{Batch: 2, NumHeads: 16, NumKVHeads: 16, SeqQ: 2048, SeqKV: 2048, HeadDim: 64, DType: t}
	if cpu {
		p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV = 1, 2, 2, 128, 128
	}
	return p
}

// compare notes the speed of each path on a problem and finds those that are slow.
func (r *Report) compare(problem attention.Problem, results []bench.Result) {
	scalar := results[slices.IndexFunc(results, func(x bench.Result) bool { return x.Impl == attention.Scalar.String() })].NS()
	for _, p := range r.Paths {
		i := slices.IndexFunc(results, func(x bench.Result) bool { return x.Impl == p.Impl.String() })
		if i < 0 || p.What != "forward" || p.DType != problem.DType {
			continue
		}
		x := results[i]
		if x.Status == bench.StatusFailed {
			p.Verdict, p.Why = Wrong, fmt.Sprintf("%v: %s", problem, x.Reason)
			continue
		}
		if x.NS() == 0 || scalar == 0 {
			continue
		}
		p.Speed = scalar / x.NS()
		if (p.Impl == attention.CoopMat2 || p.Impl == attention.CoopMat) && p.Speed < slowBelow {
			p.Verdict = Slow
			p.Why = fmt.Sprintf("right, but only %.2g times as fast as scalar at %s: %s", p.Speed, kernels.DescribeAttention(problem), r.suspicion(problem.DType))
		}
	}
}

// suspicion returns the likely reason of a slow path, given the ceilings of matrix products and of
// multiply-adds.
func (r *Report) suspicion(t dtype.DType) string {
	matrix, fma := bench.PeakOf(r.Ceilings, true, t), bench.PeakOf(r.Ceilings, false, t)
	if t == dtype.Float32 {
		matrix.FLOPs *= 3 // of the loop itself
	}
	of, beside := bench.FormatSI(matrix.FLOPs, "FLOP/s"), bench.FormatSI(fma.FLOPs, "FLOP/s")
	switch {
	case r.Env.CPU:
		return "a CPU device has no matrix units"
	case matrix.FLOPs == 0 || fma.FLOPs == 0:
		return "the cause is not known"
	case matrix.FLOPs < slowBelow*fma.FLOPs:
		return fmt.Sprintf("the driver emulates matrices, whose products run at %s, multiply-adds at %s", of, beside)
	}
	return fmt.Sprintf("the matrices are fast (%s, multiply-adds %s), the kernel does not suit the device: flashvk tune may help", of, beside)
}
