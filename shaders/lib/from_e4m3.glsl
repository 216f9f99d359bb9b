// from_e4m3: e4m3 numbers (dtype.E4M3) as float16.

// Moved to where float16 has them, the bits of an e4m3 number are 2^-8 times it, subnormals too. NaN,
// 0x7f, becomes 480.
const float E4M3_UNIT = 256.0;

// e4m3_halves returns the four elements of a word times 2^-8 as float16: bytes 0 and 2 in
// x, bytes 1 and 3 in y.
uvec2 e4m3_halves(const uint w) {
    return uvec2((w & 0x007f007fu) << 7 | (w & 0x00800080u) << 8, (w & 0x7f007f00u) >> 1 | w & 0x80008000u);
}
