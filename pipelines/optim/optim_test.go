package optim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// ChunkElements is the size of a piece of a tensor.
const ChunkElements = chunkElements

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "adamw", map[string]layouttest.Row{
		"adamw":         layouttest.Of(updateParams{}, updateSpec{}, "Chunks", "StateBuffer", "Param", "Grad", "M", "V", "Copy"),
		"adamw_norm":    layouttest.Of(normParams{}, normSpec{}, "Chunks", "Grad", "Sums"),
		"adamw_prepare": layouttest.Of(prepareParams{}, prepareSpec{}, "Sums", "StateBuffer"),
	})
}

// TestValidate has the message of each constant out of its range.
func TestValidate(t *testing.T) {
	for want, change := range map[string]func(p *Problem){
		"optim: lr=0 is not a positive float32":                   func(p *Problem) { p.LR = 0 },
		"optim: lr=+Inf is not a positive float32":                func(p *Problem) { p.LR = math.Inf(1) },
		"optim: beta1=1 is not in [0, 1)":                         func(p *Problem) { p.Beta1 = 1 },
		"optim: beta2=NaN is not in [0, 1)":                       func(p *Problem) { p.Beta2 = math.NaN() },
		"optim: eps=0 is not a positive float32":                  func(p *Problem) { p.Eps = 0 },
		"optim: weight_decay=-1 is not a finite number from 0 on": func(p *Problem) { p.WeightDecay = -1 },
		"optim: max_norm=-1 is negative":                          func(p *Problem) { p.MaxNorm = -1 },
	} {
		p := Default()
		change(&p)
		require.EqualError(t, p.Validate(), want)
	}
}
