package storage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// TestFormats has the bytes of numbers in every format, and what they are when they are read.
func TestFormats(t *testing.T) {
	inf := float32(math.Inf(-1))
	for _, c := range []struct {
		format dtype.DType
		from   []float32
		bytes  []byte
		to     []float32
	}{
		{dtype.Float32, []float32{1, -2.5, inf}, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0, 0, 0, 0x80, 0xff}, []float32{1, -2.5, inf}},
		{dtype.Float16, []float32{1, -2.5, 1e6}, []byte{0, 0x3c, 0, 0xc1, 0, 0x7c}, []float32{1, -2.5, -inf}},
		{dtype.BFloat16, []float32{1, -2.5, 257}, []byte{0x80, 0x3f, 0x20, 0xc0, 0x80, 0x43}, []float32{1, -2.5, 256}},
		{dtype.E4M3, []float32{1, -2.5, 17}, []byte{0x38, 0xc2, 0x58}, []float32{1, -2.5, 16}},
		{dtype.Int32, []float32{1, -2.5, 1 << 24}, []byte{1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 1}, []float32{1, -2, 1 << 24}},
		{dtype.Int8, []float32{1, -3.5, 200}, []byte{1, 0xfc, 0x7f}, []float32{1, -4, 127}},
		{dtype.Bool, []float32{0, -2.5, 1}, []byte{0, 1, 1}, []float32{0, 1, 1}},
	} {
		b := Bytes(c.format, c.from)
		require.Equal(t, c.bytes, b, c.format)
		to := make([]float32, len(c.to))
		Decode(c.format, to, b)
		require.Equal(t, c.to, to, c.format)
	}
}
