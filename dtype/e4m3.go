package dtype

import "math"

// ToE4M3 returns the bits of the number of e4m3 that is nearest to x, ties to even. Beyond ±448
// it returns ±448.
func ToE4M3(x float32) uint8 {
	b := math.Float32bits(x)
	sign := uint8(b >> 24 & 0x80)
	mag := b & 0x7fffffff
	switch {
	case mag > 0x7f800000: // NaN
		return sign | 0x7f
	case mag >= 0x43e00000: // 448
		return sign | 0x7e
	case mag >= 0x3c800000: // normal, 2^-6 and more: rebias 127 to 7, drop 20 bits
		return sign | uint8((mag-(120<<23)+0x7ffff+mag>>20&1)>>20)
	}
	// Subnormal: adding 2^14 aligns the last kept bit, 2^-9, with the last bit of the sum, so the
	// addition itself rounds to even.
	f := math.Float32frombits(mag) + 0x1p14
	return sign | uint8(math.Float32bits(f)-math.Float32bits(0x1p14))
}

// FromE4M3 returns the value of e4m3 bits, exactly.
func FromE4M3(b uint8) float32 {
	mag := b & 0x7f
	if mag == 0x7f {
		return float32(math.NaN())
	}
	// The same bits as a float16 are 2^-8 times the number, subnormals too.
	x := FromFloat16(uint16(mag)<<7) * 0x1p8
	if b&0x80 != 0 {
		return -x
	}
	return x
}
