package dtype

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoundTrip: every 16-bit pattern survives to float32 and back; NaN stays NaN.
func TestRoundTrip(t *testing.T) {
	for i := 0; i <= math.MaxUint16; i++ {
		h := uint16(i)
		if f := FromFloat16(h); f != f {
			require.True(t, math.IsNaN(float64(FromFloat16(ToFloat16(f)))), "float16 %#04x", h)
		} else {
			require.Equal(t, h, ToFloat16(f), "float16 %#04x = %g", h, f)
		}
		if f := FromBFloat16(h); f != f {
			require.True(t, math.IsNaN(float64(FromBFloat16(ToBFloat16(f)))), "bfloat16 %#04x", h)
		} else {
			require.Equal(t, h, ToBFloat16(f), "bfloat16 %#04x = %g", h, f)
		}
	}
}

// TestNearestEven compares with a search of the neighbouring patterns: the
// chosen one is nearest, and even on a tie.
func TestNearestEven(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, f := range []struct {
		name string
		to   func(float32) uint16
		from func(uint16) float32
		max  float64
	}{{"float16", ToFloat16, FromFloat16, 65504}, {"bfloat16", ToBFloat16, FromBFloat16, math.MaxFloat32}} {
		check := func(x float32) {
			h := f.to(x)
			got := math.Abs(float64(f.from(h)) - float64(x))
			for _, n := range []uint16{h - 1, h + 1} {
				v := float64(f.from(n))
				if math.IsNaN(v) || math.IsInf(v, 0) || math.IsInf(float64(f.from(h)), 0) {
					continue
				}
				d := math.Abs(v - float64(x))
				require.False(t, d < got || d == got && h&1 == 1, "%s(%g) = %#04x, but %#04x is nearer or even", f.name, x, h, n)
			}
		}
		for range 200000 {
			x := math.Float32frombits(rng.Uint32())
			if x == x && math.Abs(float64(x)) <= f.max {
				check(x)
			}
		}
		for i := range 0x7bff { // exact ties between neighbours
			a, b := float64(f.from(uint16(i))), float64(f.from(uint16(i+1)))
			if m := (a + b) / 2; float64(float32(m)) == m {
				check(float32(m))
				check(float32(-m))
			}
		}
	}
}

func TestOverflow(t *testing.T) {
	inf := float32(math.Inf(1))
	require.Equal(t, uint16(0x7bff), ToFloat16(65519.996))
	require.Equal(t, uint16(0x7c00), ToFloat16(65520))
	require.Equal(t, uint16(0xfc00), ToFloat16(-inf))
	require.Equal(t, uint16(0x7f80), ToBFloat16(math.MaxFloat32))
	require.Equal(t, uint16(0x7f80), ToBFloat16(inf))
	require.Equal(t, inf, Float16.Round(1e6))
}

func TestParse(t *testing.T) {
	for _, d := range All() {
		for _, name := range []string{d.String(), d.Short()} {
			got, err := Parse(name)
			require.NoError(t, err)
			require.Equal(t, d, got)
		}
	}
	for name, want := range map[string]DType{"fp16": Float16, "half": Float16, "bf16": BFloat16, "fp32": Float32} {
		got, err := Parse(name)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
	_, err := Parse("float64")
	require.EqualError(t, err, `dtype: "float64" is not one of float32, float16, bfloat16`)
}

// TestFormats: what each format is, and that there is none after the last.
func TestFormats(t *testing.T) {
	for d, want := range map[DType]struct {
		name  string
		size  int
		float bool
	}{
		Float32: {"float32", 4, true}, Float16: {"float16", 2, true}, BFloat16: {"bfloat16", 2, true},
		Int32: {"int32", 4, false}, Bool: {"bool", 1, false}, E4M3: {"e4m3", 1, false}, Int8: {"int8", 1, false},
	} {
		require.True(t, d.Valid())
		require.Equal(t, want.name, d.String())
		require.Equal(t, want.size, d.Size(), d)
		require.Equal(t, want.float, d.Float(), d)
	}
	require.False(t, (Int8 + 1).Valid())
	for _, d := range All() {
		require.True(t, d.Float())
	}
}

// TestE4M3 compares all numbers with what sign, exponent and fraction say, and rounds each to
// itself.
func TestE4M3(t *testing.T) {
	for b := range 256 {
		x := FromE4M3(uint8(b))
		if b&0x7f == 0x7f {
			require.True(t, math.IsNaN(float64(x)), "%#x", b)
			continue
		}
		want := float64(b&7) / 8 * 0x1p-6
		if e := b >> 3 & 15; e > 0 {
			want = math.Ldexp(1+float64(b&7)/8, e-7)
		}
		if b >= 128 {
			want = math.Copysign(want, -1)
		}
		require.Equal(t, want, float64(x), "%#x", b)
		require.Equal(t, uint8(b), ToE4M3(x), "%#x", b)
	}
	require.Equal(t, float32(448), FromE4M3(0x7e))
}

// TestToE4M3 has numbers between all neighbours: the nearer one, in the middle the even one, and
// beyond the last the last.
func TestToE4M3(t *testing.T) {
	for b := range uint8(0x7e) {
		low, high := FromE4M3(b), FromE4M3(b+1)
		middle := low + (high-low)/2
		even := b + b%2
		for _, sign := range []float32{1, -1} {
			bit := uint8(0)
			if sign < 0 {
				bit = 0x80
			}
			require.Equal(t, bit|even, ToE4M3(sign*middle), "%v", sign*middle)
			require.Equal(t, bit|b, ToE4M3(sign*math.Nextafter32(middle, 0)), "below %v", sign*middle)
			require.Equal(t, bit|(b+1), ToE4M3(sign*math.Nextafter32(middle, 1000)), "above %v", sign*middle)
		}
	}
	for _, x := range []float32{448, 449, 464, 479, 1e30, float32(math.Inf(1))} {
		require.Equal(t, uint8(0x7e), ToE4M3(x), "%v", x)
		require.Equal(t, uint8(0xfe), ToE4M3(-x), "%v", -x)
	}
	require.Equal(t, uint8(0x7f), ToE4M3(float32(math.NaN()))&0x7f)
	require.Equal(t, uint8(0x80), ToE4M3(float32(math.Copysign(0, -1))))
}

func TestOption(t *testing.T) {
	var none Option
	require.Equal(t, "none", none.String())
	text, err := json.Marshal(none)
	require.NoError(t, err)
	require.Equal(t, "null", string(text))
	for format := Float32; format.Valid(); format++ {
		require.Equal(t, format, none.Or(format))
		some := Some(format)
		require.NotEqual(t, none, some)
		require.Equal(t, format, some.Or(Float16))
		require.Equal(t, format.String(), some.String())
		text, err := json.Marshal(some)
		require.NoError(t, err)
		of, err := json.Marshal(format)
		require.NoError(t, err)
		require.Equal(t, string(of), string(text))
		for _, back := range []Option{none, Some(E4M3)} {
			require.NoError(t, json.Unmarshal(text, &back))
			require.Equal(t, some, back)
			require.NoError(t, json.Unmarshal([]byte("null"), &back))
			require.Equal(t, none, back)
		}
	}
	require.Error(t, json.Unmarshal([]byte("99"), &none))
	require.Error(t, json.Unmarshal([]byte(`"float16"`), &none))
}
