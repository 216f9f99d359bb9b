package gp_test

import (
	"fmt"

	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
)

// The tasks of a training step, as the model reads them, and the least loss on them.
func Example() {
	s := tnp.Shape{Batch: 4, Context: 10, Targets: 5}
	tasks := gp.Batch(s, 1, 0)
	x, y := gp.Tokens(tasks)
	fmt.Println(len(x), len(y), "flags:", x[2], x[10*3+2])
	fmt.Printf("%.3f\n", gp.NLL(tasks))
	fmt.Println(len(gp.Curve(3, 200, 1, 0, 0).X), "points to draw")
	// Output:
	// 180 20 flags: 1 -1
	// 0.067
	// 203 points to draw
}
