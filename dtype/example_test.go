package dtype_test

import (
	"fmt"
	"math"

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

// Numbers as bits, and back.
func ExampleToFloat16() {
	fmt.Printf("%#04x %v\n", dtype.ToFloat16(0.1), dtype.FromFloat16(dtype.ToFloat16(0.1)))
	fmt.Printf("%#04x %v\n", dtype.ToBFloat16(0.1), dtype.FromBFloat16(dtype.ToBFloat16(0.1)))
	fmt.Printf("%#02x %v\n", dtype.ToE4M3(0.1), dtype.FromE4M3(dtype.ToE4M3(0.1)))
	// Output:
	// 0x2e66 0.099975586
	// 0x3dcd 0.100097656
	// 0x1d 0.1015625
}

// Names as flags and files have them.
func ExampleParse() {
	for _, name := range []string{"bfloat16", "half", "f32", "int8"} {
		fmt.Println(dtype.Parse(name))
	}
	// Output:
	// bfloat16 <nil>
	// float16 <nil>
	// float32 <nil>
	// float32 dtype: "int8" is not one of float32, float16, bfloat16
}

// An output has the format of an input, unless an Option says another.
func ExampleSome() {
	var none dtype.Option
	fmt.Println(none.Or(dtype.BFloat16), dtype.Some(dtype.Float32).Or(dtype.BFloat16))
	// Output: bfloat16 float32
}

// Five numbers share a scale, so that the largest becomes the largest element.
func ExampleQuants() {
	for _, q := range dtype.Quants() {
		scale := q.Scale(8) // the largest magnitude
		fmt.Print(q, " ", scale, ":")
		for _, x := range []float64{8, -3, 0.03, 0, math.NaN()} {
			fmt.Print(" ", q.Round(x, scale))
		}
		fmt.Println()
	}
	fmt.Println(dtype.ToInt8(2.5), dtype.ToInt8(-1000))
	// Output:
	// int8 0.06299212574958801: 127 -48 0 0 0
	// q8_0 0.06298828125: 127 -48 0 0 0
	// e4m3 0.01785714365541935: 448 -160 1.625 0 NaN
	// 2 -128
}
