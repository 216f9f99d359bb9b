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
)

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
			if p.Kernel == attentionKernel && p.Pass == bench.Forward && p.DType == t && p.Verdict == Pass {
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
		c := bench.Case{Op: op, Impls: impls, Protocol: quick(r.report.Env.CPU)}
		results, err := bench.Run(ctx, r.d, c, nil)
		if err != nil {
			return err
		}
		r.compare(problem, results)
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
func (r *run) compare(problem attention.Problem, results []bench.Result) {
	t := problem.DType
	at := slices.IndexFunc(results, func(x bench.Result) bool { return x.Impl == attention.Scalar.String() })
	scalar := results[at].NS()
	for _, x := range results {
		i := slices.IndexFunc(r.report.Paths, func(p Path) bool {
			return p.Kernel == attentionKernel && p.Pass == bench.Forward && p.DType == t && p.Impl.String() == x.Impl
		})
		if i < 0 {
			continue
		}
		p := &r.report.Paths[i]
		if x.Status == bench.StatusFailed {
			p.Verdict, p.Why = Wrong, fmt.Sprintf("%v: %s", problem, x.Reason)
			continue
		}
		if x.NS() == 0 || scalar == 0 {
			continue
		}
		p.Speed = scalar / x.NS()
		matrices := p.Impl == attention.CoopMat2 || p.Impl == attention.CoopMat
		if matrices && p.Speed < slowBelow {
			p.Verdict = Slow
			p.Why = fmt.Sprintf("right, but only %.2g times as fast as scalar at %s: %s", p.Speed, kernels.DescribeAttention(problem), r.suspicion(t))
		}
	}
}

// suspicion returns the likely reason of a slow path, given the ceilings of matrix products and of
// multiply-adds.
func (r *run) suspicion(t dtype.DType) string {
	if r.report.Env.CPU {
		return "a CPU device has no matrix units"
	}
	matrix, fma := bench.PeakOf(r.report.Ceilings, true, t), bench.PeakOf(r.report.Ceilings, false, t)
	if t == dtype.Float32 {
		matrix.FLOPs *= 3 // of the loop itself
	}
	switch {
	case matrix.FLOPs == 0 || fma.FLOPs == 0:
		return "the cause is not known"
	case matrix.FLOPs < slowBelow*fma.FLOPs:
		return fmt.Sprintf("the driver emulates matrices, whose products run at %s, multiply-adds at %s", bench.FormatSI(matrix.FLOPs, "FLOP/s"), bench.FormatSI(fma.FLOPs, "FLOP/s"))
	}
	return fmt.Sprintf("the matrices are fast (%s, multiply-adds %s), the kernel does not suit the device: flashvk tune may help",
		bench.FormatSI(matrix.FLOPs, "FLOP/s"), bench.FormatSI(fma.FLOPs, "FLOP/s"))
}
