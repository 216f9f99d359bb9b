package trial

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
)

// drawOptim draws steps of AdamW.
func drawOptim(family, rng *rand.Rand, s Space) *call.Optim {
	p := &call.Optim{HasCopy: family.IntN(2) == 0}
	var ok bool
	if p.Grad, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	if p.Copy = p.Grad; p.Grad == dtype.Float32 {
		p.Copy = []dtype.DType{dtype.Float16, dtype.BFloat16}[family.IntN(2)]
	}
	p.Data = drawData(family, rng)
	p.Workspace = false // it has its own
	p.Magnitude = min(p.Magnitude, call.Most(p.Grad)/p.Largest())
	if p.HasCopy && p.Copy == dtype.Float16 {
		p.Second = min(p.Second, 3000)
	}
	p.Clip = []string{"", call.OptimClip, call.OptimClip, call.OptimNorm}[rng.IntN(4)]
	if p.Clip == call.OptimClip {
		p.ClipBy = tenTo(rng, -3, 0.3)
		if p.ClipBy > 0.99 && p.ClipBy < 1.01 {
			p.ClipBy = 1.5 // roundoff would decide whether the norm clips
		}
	}
	p.Infinite = p.Clip != "" && rng.IntN(12) == 0
	p.Beta1, p.Beta2, p.Eps = 0.9, 0.999, 1e-8
	if rng.IntN(3) == 0 {
		p.Beta1, p.Beta2 = []float64{0, 0.5, 0.8, 0.95}[rng.IntN(4)], []float64{0.5, 0.9, 0.95, 0.99}[rng.IntN(4)]
		p.Eps = []float64{1e-8, 1e-6, 0.1}[rng.IntN(3)]
	}
	p.WeightDecay = []float64{0, 0.01, 0.3}[rng.IntN(3)]
	p.LR = float64(float32(tenTo(rng, -5, 0)))
	p.Done = []int{0, 0, rng.IntN(10), rng.IntN(1000), rng.IntN(100000)}[rng.IntN(5)]
	p.Arena = rng.IntN(2) == 0
	for range 1 + rng.IntN(6) {
		n := Size(rng, 9000)
		if rng.IntN(3) == 0 {
			n = 4096*(1+rng.IntN(4)) + rng.IntN(9) - 4 // pieces of a workgroup
		}
		p.Sizes = append(p.Sizes, n)
	}
	if rng.IntN(16) == 0 && !s.Soft { // several pieces for each of many multiprocessors
		p.Sizes[0] = 4096*400 + rng.IntN(200000)
	}
	total := func() (cost float64) {
		for _, n := range p.Sizes {
			cost += 30 * float64(n)
		}
		return cost
	}
	var each []*int
	for i := range p.Sizes {
		each = append(each, &p.Sizes[i])
	}
	within(rng, budget(rng, s), total, each...)
	return p
}
