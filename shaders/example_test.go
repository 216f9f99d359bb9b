package shaders_test

import (
	"fmt"

	"github.com/flashvk/flashvk/shaders"
)

// A kernel is named by its file and its element type.
func ExampleGet() {
	m, err := shaders.Get("attention_fwd_scalar", "f16")
	fmt.Println(m.Name, len(m.SPIRV)%4, err)
	_, err = shaders.Get("attention_fwd_scalar", "f64")
	fmt.Println(err)
	// Output:
	// attention_fwd_scalar.f16 0 <nil>
	// shaders: no module attention_fwd_scalar.f64
}
