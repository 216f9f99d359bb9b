package selftest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// attentionKernel is the kernel with two suites, one for each pass.
const attentionKernel = "attention"

// A suite has the cases of a path of a pass of attention, or of another kernel, the cheap ones first.
type suite struct {
	kernel string
	pass   bench.Pass
	impl   attention.Impl
	cases  []trial.Fixed
}

// suites returns the suites for the device. A software driver would take too long for the large
// cases.
func (r *run) suites() (list []suite) {
	set := attntest.Full
	if r.report.Env.CPU {
		set = attntest.Short
	}
	forward, backward := attntest.Cases(set, kit.Forward), attntest.Cases(set, kit.Backward)
	for _, impl := range r.Impls {
		list = append(list, suite{attentionKernel, bench.Forward, impl, ofAttention(impl, forward)},
			suite{attentionKernel, bench.Backward, impl, ofAttention(impl, backward)})
		for _, kernel := range []string{"decode", "step"} {
			if impl == attention.CoopMat || impl == attention.Scalar {
				list = append(list, suite{kernel, bench.Forward, impl, trial.FixedOf(kernel, impl)})
			}
		}
		if impl == attention.Scalar {
			list = append(list, suite{"append", bench.Forward, impl, trial.FixedOf("append", impl)})
		}
	}
	for i := range list {
		s := &list[i]
		slices.SortStableFunc(s.cases, func(a, b trial.Fixed) int { return cmp.Compare(a.Cost, b.Cost) })
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

// ofAttention returns cases of attention on a path. What is expected of a case is computed once for all
// paths.
func ofAttention(impl attention.Impl, cases []*attntest.Case) (list []trial.Fixed) {
	for _, c := range cases {
		a, cost := c.On(attention.Options{Impl: impl}), c.FLOPs()
		if 2*cost > sampleCost {
			a.Sample = int(sampleCost / (4 * float64(a.SeqKV) * float64(a.HeadDim+a.ValueHeadDim())))
		}
		list = append(list, trial.Fixed{Name: c.Name, DType: a.DType, Cost: cost, Problem: a})
	}
	return list
}

// The largest dimensions of heads on a software driver's matrices: of the forward pass in float32, of
// the backward pass, and of that in float32. Above them a kernel takes up to a minute to compile, and
// minutes with head_dim 192.
const softForward32, softBackward, softBackward32 = 64, 72, 24

// slow returns an error for kernels that a software driver compiles for too long.
func slow(caps *vk.Caps, s suite, p trial.Problem) error {
	a, ok := p.(*attntest.Case)
	if !ok || caps.Type != vk.CPU || s.impl != attention.CoopMat2 && s.impl != attention.CoopMat {
		return nil
	}
	dim, most := max(a.HeadDim, a.ValueHeadDim()), softBackward
	switch {
	case !a.Backward && a.DType == dtype.Float32:
		dim, most = a.HeadDim, softForward32
	case !a.Backward:
		return nil
	case a.DType == dtype.Float32:
		most = softBackward32
	}
	if dim <= most {
		return nil
	}
	return fmt.Errorf("the %v pass of %v on software matrices beyond head_dim %d takes long to compile", s.pass, a.DType, most)
}
