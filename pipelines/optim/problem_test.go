package optim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestValidate has the message of each constant out of its range.
func TestValidate(t *testing.T) {
	require.NoError(t, Default().Validate())
	for _, c := range []struct {
		change func(p *Problem)
		want   string
	}{
		{func(p *Problem) { *p = Problem{Beta1: p.Beta1, Beta2: p.Beta2, Eps: p.Eps} }, "optim: lr=0 is not a positive float32"},
		{func(p *Problem) { p.LR = math.Inf(1) }, "optim: lr=+Inf is not a positive float32"},
		{func(p *Problem) { p.Beta1 = 1 }, "optim: beta1=1 is not in [0, 1)"},
		{func(p *Problem) { p.Beta2 = math.NaN() }, "optim: beta2=NaN is not in [0, 1)"},
		{func(p *Problem) { p.Eps = 0 }, "optim: eps=0 is not a positive float32"},
		{func(p *Problem) { p.WeightDecay = -1 }, "optim: weight_decay=-1 is not a finite number from 0 on"},
		{func(p *Problem) { p.MaxNorm = -1 }, "optim: max_norm=-1 is negative"},
	} {
		p := Default()
		c.change(&p)
		require.EqualError(t, p.Validate(), c.want)
	}
}
