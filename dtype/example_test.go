package dtype_test

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
)

// A third in each format, and what is too large for float16.
func ExampleDType_Round() {
	for _, t := range dtype.All() {
		fmt.Println(t, t.Size(), t.Round(1./3), t.Round(70000))
	}
	// Output:
	// float32 4 0.33333334 70000
	// float16 2 0.33325195 +Inf
	// bfloat16 2 0.33398438 70144
}
