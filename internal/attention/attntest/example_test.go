package attntest_test

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/attention/ref"
)

// The first case with more than one key finds an implementation that forgets the scale. In a test,
// TestForward runs all cases.
func Example() {
	suite := attntest.NewSuite(attntest.Short, attntest.Reference, attntest.TwicePlain)
	wrong := attntest.Contiguous(func(o, lse []float64, in ref.Inputs[float64], p attention.Problem) error {
		p.Scale = 1
		return ref.Forward(o, lse, in, p)
	})
	for _, c := range suite.Cases {
		if c.Problem.SeqKV < 2 {
			continue
		}
		_, err := suite.Check(c, wrong)
		// O[45] = -1.34991007, want 0.0259099334: off by 1.38, tolerance
		// 1.6e-06 at (b=0, h=0, i=0, d=51)
		element, _, _ := strings.Cut(err.Error(), " = ")
		fmt.Println(c.Name, "fails at", element)
		_, err = suite.Check(c, attntest.Reference)
		fmt.Println(err)
		break
	}
	// Output:
	// shape/3x3/dense/float32 fails at O[45]
	// <nil>
}
