package optim

import (
	"fmt"
	"math"
)

// A Problem holds the constants of AdamW, and the learning rate that it begins with.
type Problem struct {
	LR           float64 // positive; AdamW.SetLR changes it, also of steps that are recorded
	Beta1, Beta2 float64 // in [0, 1)
	Eps          float64 // positive
	WeightDecay  float64 // not negative
	// MaxNorm clips gradients: if their norm is larger, they are multiplied by MaxNorm/norm. With
	// 0 nothing is clipped, and the norm is not computed. With +Inf the norm is computed and
	// nothing is clipped. Every MaxNorm but 0 skips a step with a gradient that is not finite.
	MaxNorm float64
}

// Default returns the defaults of PyTorch: learning rate 1e-3, betas 0.9 and 0.999, eps 1e-8,
// weight decay 0.01, no clipping.
func Default() Problem {
	return Problem{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}
}

// Validate returns an error that names the first constant that is out of its range.
func (p Problem) Validate() error {
	in := func(x, least, most float64) bool { return x >= least && x < most } // false for NaN
	switch {
	case !in(p.LR, 0x1p-126, math.MaxFloat32):
		return fmt.Errorf("optim: lr=%g is not a positive float32", p.LR)
	case !in(p.Beta1, 0, 1):
		return fmt.Errorf("optim: beta1=%g is not in [0, 1)", p.Beta1)
	case !in(p.Beta2, 0, 1):
		return fmt.Errorf("optim: beta2=%g is not in [0, 1)", p.Beta2)
	case !in(p.Eps, 0x1p-126, math.MaxFloat32):
		return fmt.Errorf("optim: eps=%g is not a positive float32", p.Eps)
	case !in(p.WeightDecay, 0, math.MaxFloat32):
		return fmt.Errorf("optim: weight_decay=%g is not a finite number from 0 on", p.WeightDecay)
	case !(p.MaxNorm >= 0):
		return fmt.Errorf("optim: max_norm=%g is negative", p.MaxNorm)
	}
	return nil
}
