package trial

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/call"
)

// TestDecodeBounds wants half of the problems of Decode and Step to find an O that is off by a few steps of
// its format, and an LSE that is off by roundings of scores. Steps are those of the largest element.
func TestDecodeBounds(t *testing.T) {
	const half16, half32, halfLSE = 3, 30, 120 // over 800 problems they find 1.5, 11 and 42
	steps := map[string][]float64{}
	for _, name := range []string{"decode", "step"} {
		k, err := Find(name)
		require.NoError(t, err)
		for n := range 120 {
			p, ok := drawNumber(&k, n, call.Space{Soft: true, Work: 1e5}).(*called)
			if !ok {
				continue
			}
			outputs := p.Want(call.Inputs(p.Call), p.Pass())
			for _, x := range p.Tensors() {
				o, _ := outputs.Of(x.Name)
				if o.Bounds == nil || x.Off || x.Name != "o" && x.Name != "lse" {
					continue
				}
				most := 0.0
				for _, w := range o.Want {
					if !math.IsInf(w, 0) {
						most = max(most, math.Abs(w))
					}
				}
				if most > 0 {
					name := k.Name + " " + x.Name + " " + x.DType.String()
					steps[name] = append(steps[name], slices.Max(o.Bounds)/(x.DType.Eps()*most))
				}
			}
		}
		for format, most := range map[string]float64{"o float16": half16, "o bfloat16": half16, "o float32": half32, "lse float32": halfLSE} {
			list := steps[k.Name+" "+format]
			require.Greater(t, len(list), 10)
			slices.Sort(list)
			require.Less(t, list[len(list)/2], most, "%s %s", k.Name, format)
		}
	}
}
