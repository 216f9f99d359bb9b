package trial

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk"
)

// stepKernel draws calls of attention.Step.
func stepKernel() Kernel {
	return Kernel{Name: "step", Weight: 2, New: func() Problem { return &stepProblem{} }, Draw: drawStep}
}

// stepProblem is one of them: decodeProblem with new keys. All angles are multiples of a right
// angle, so that rotated elements are exact and the bounds are those of decode. Config may append.
type stepProblem struct {
	decodeProblem
	RoPE attention.RoPE
}

// String implements Problem.
func (p *stepProblem) String() string {
	return fmt.Sprintf("%s/rope=%d,%v", p.decodeProblem.String(), p.RoPE.Dims, p.RoPE.Interleaved)
}

func (p *stepProblem) step() attention.AppendProblem {
	return attention.AppendProblem{DecodeProblem: p.DecodeProblem, RoPE: p.RoPE}
}

// Supports implements Problem.
func (p *stepProblem) Supports(caps *vk.Caps) error {
	_, err := attention.ChooseStep(caps, p.step(), p.options())
	return err
}

// tensors returns those of the call.
func (p *stepProblem) tensors() ([]guard.Tensor, error) {
	within := p.decodeProblem
	within.Lens = slices.Clone(p.Lens)
	for b, n := range p.Lens {
		within.Lens[b] = min(n, p.SeqKV-p.NewKeys)
	}
	in := within.lengths()
	within.drawTables(&in)
	if p.CacheRows > 0 { // no row is of two sequences
		for b, row := range p.Rand(22).Perm(p.CacheRows)[:p.Batch] {
			in.CacheBatchIdx[b] = int32(row)
		}
	}
	within.drawNumbers(&in)
	cos, sin := p.angles()
	newK := p.Numbers(11, p.DType, product(p.step().NewKShape()), call.OrOne(p.Second))
	newV := p.Numbers(12, p.DType, product(p.step().NewVShape()), 1)
	before := map[string][]float64{"q": slices.Clone(in.Q), "k": slices.Clone(in.K), "v": slices.Clone(in.V)}
	dim, dv := p.HeadDim, p.ValueHeadDim()
	key := func(r ref.Row, position int) {
		from, to := (r.Batch*p.NumKVHeads+r.Head)*p.NewKeys+r.Row, in.At(&p.DecodeProblem, r.Batch, r.Head, position)
		copy(in.K[to*dim:], ref.Rotate(p.RoPE, newK[from*dim:][:dim], cos, sin, position))
		copy(in.V[to*dv:][:dv], newV[from*dv:])
	}
	query := func(r ref.Row, position int) {
		at := ((r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row) * dim
		copy(in.Q[at:], ref.Rotate(p.RoPE, before["q"][at:][:dim], cos, sin, position))
	}
	all := ref.Append(p.step(), p.Lens, key, query)
	list, err := within.tensorsOf(in)
	if err != nil {
		return nil, err
	}
	for i := range list {
		x := &list[i]
		switch x.Name {
		case "q", "k", "v":
			x.Want, x.Values = x.Values, before[x.Name]
		case "o", "lse":
			if !all { // they are invalid
				x.Want, x.Bounds, x.Scratch = nil, nil, true
			}
		case "state":
			if !all {
				x.Want = slices.Clone(x.Want)
				x.Want[0] = 1 // BAD_LENGTH of lib/cache_status.glsl
			}
		case "seq_lens":
			for b, n := range p.Lens {
				x.Values[b] = float64(n)
			}
		}
	}
	list = append(list, guard.Tensor{Name: "new_k", DType: p.DType, Shape: p.step().NewKShape(), Values: newK}, guard.Tensor{Name: "new_v", DType: p.DType, Shape: p.step().NewVShape(), Values: newV})
	if p.RoPE.Dims > 0 {
		angles := []int{p.SeqKV, p.RoPE.Dims / 2}
		place := &guard.Place{Offset: int(p.Seed % 5)}
		list = append(list, guard.Tensor{Name: "cos", Shape: angles, Values: cos, Place: place}, guard.Tensor{Name: "sin", Shape: angles, Values: sin, Place: place})
	}
	return list, nil
}

// angles returns the tables: cosines and sines of multiples of a right angle.
func (p *stepProblem) angles() (cos, sin []float64) {
	rng := p.Rand(23)
	for range p.SeqKV * p.RoPE.Dims / 2 {
		turns := rng.IntN(4)
		cos, sin = append(cos, []float64{1, 0, -1, 0}[turns]), append(sin, []float64{0, 1, 0, -1}[turns])
	}
	return cos, sin
}

// Check implements Problem.
func (p *stepProblem) Check(ctx context.Context, r *Runner) error {
	plan, err := attention.ChooseStep(r.Device().Caps(), p.step(), p.options())
	if err != nil {
		return err
	}
	tensors, err := p.tensors()
	if err != nil {
		return err
	}
	tensors = append(tensors, p.WorkspaceTensor(plan.Workspace(), 0)...)
	return p.check(ctx, r, "step", tensors, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := p.options()
		opt.Workspace = t[call.WorkspaceName].Buffer
		return attention.Step(c, attention.StepTensors{
			DecodeTensors: p.decodeTensors(t), NewK: t["new_k"], NewV: t["new_v"], Cos: t["cos"], Sin: t["sin"],
		}, p.step(), opt)
	})
}

// Smaller implements Problem.
func (p *stepProblem) Smaller() (list []Problem) {
	add := func(q stepProblem) {
		if q.step().Validate() == nil {
			list = append(list, &q)
		}
	}
	for _, q := range p.decodeProblem.Smaller() {
		add(stepProblem{*q.(*decodeProblem), p.RoPE})
	}
	for _, rope := range []attention.RoPE{{}, {Dims: p.RoPE.Dims}} {
		if rope != p.RoPE {
			add(stepProblem{p.decodeProblem, rope})
		}
	}
	return list
}

// drawStep draws a problem. In most, all rows of a key head are one unit, as in the kernel that appends.
func drawStep(family, rng *rand.Rand, s Space) Problem {
	d, ok := drawDecode(family, rng, s).(*decodeProblem)
	if !ok || d == nil {
		return nil
	}
	p := &stepProblem{decodeProblem: *d}
	p.Shared = false
	p.Cache, p.Scales = attention.CacheSame, noScales // one kernel appends to no other, and two have draws of their own
	word := 16 / p.DType.Size()
	switch family.IntN(5) {
	case 0:
		p.RoPE.Dims = 2 * (1 + family.IntN(p.HeadDim/2))
	case 1, 2, 3:
		p.RoPE.Dims = p.HeadDim / (2 * word) * (2 * word)
	}
	p.RoPE.Interleaved = p.RoPE.Dims > 0 && chance(family, 2)
	group, most := p.NumHeads/p.NumKVHeads, 16
	if p.Config == nil && p.Impl != attention.Auto {
		p.Config = drawDecodeConfig(family, p.Impl, p.DecodeProblem, s)
		drawGroups(rng, p.Config, s)
	}
	if p.Config != nil {
		appends := family.IntN(4) > 0
		if p.Impl == attention.CoopMat {
			most = 32
		}
		if p.SeqQ = min(p.SeqQ, max(1, most/group)); appends {
			for p.Config.Rows < group*p.SeqQ {
				p.Config.Rows *= 2
			}
			p.Config.Append = true
		}
	}
	p.newKeys(rng)
	if p.Config != nil && p.Config.Append && p.Supports(kernelCaps(s.Soft)) != nil {
		p.Config.Append = false
		if p.Supports(kernelCaps(s.Soft)) != nil {
			p.Config = nil
		}
	}
	return p
}

// newKeys sets how many keys are new, 1 at least, and what follows from that. Now and then a sequence has
// no room for them.
func (p *stepProblem) newKeys(rng *rand.Rand) {
	if p.NewKeys == 0 {
		p.NewKeys = one(rng, 1, 1, 2, 1+rng.IntN(40))
		p.SeqKV += p.NewKeys
	}
	if p.PageSize > 0 {
		p.SeqKV = (p.SeqKV + p.PageSize - 1) / p.PageSize * p.PageSize
		p.Pages = p.Batch*p.SeqKV/p.PageSize + rng.IntN(4)
	}
	if rng.IntN(12) == 0 {
		p.Lens[rng.IntN(p.Batch)] = p.SeqKV - p.NewKeys + 1 + rng.IntN(9)
	}
}
