// narrow_bf16: float to the nearest bfloat16, ties to even, as its bits. Vulkan leaves the
// rounding of its own conversion open.

uint narrow_bf16(const float x) {
    const uint bits = floatBitsToUint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return bits >> 16 | 0x40u;  // a NaN with its payload cut off must stay a NaN
    }
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

// pack_bf16 returns the nearest bfloat16s of two results of arithmetic in one word, the first in
// the low half. Their NaNs are quiet. It takes about two thirds of the instructions of two calls
// of narrow_bf16, which were a third of all instructions of norm_fwd. It tests the bits for a NaN, because
// Vulkan lets a compiler assume that isnan is false.
uint pack_bf16(const float low, const float high) {
    const uvec2 bits = uvec2(floatBitsToUint(low), floatBitsToUint(high));
    const bvec2 nan = greaterThan(bits & 0x7fffffffu, uvec2(0x7f800000u));
    const uvec2 rounded = mix(bits + 0x7fffu + (bits >> 16 & 1u), bits, nan);
    return rounded.x >> 16 | rounded.y & 0xffff0000u;
}

// round_bf16 is pack_bf16 of numbers that are not NaN, in two thirds of the operations. An
// addition rounds both mantissas, as numbers from 1 to 2, to multiples of 2^-7, the last place of
// a number near 1.5 * 2^16. A mantissa that reaches 2 adds one to the exponent.
uint round_bf16(const float low, const float high) {
    const uvec2 bits = uvec2(floatBitsToUint(low), floatBitsToUint(high));
    const uvec2 rounded = floatBitsToUint(uintBitsToFloat(bits & 0x7fffffu | 0x3f800000u) + 98304.0);
    const uint exponents = (bits.x >> 16 | bits.y & 0xffff0000u) & 0xff80ff80u;
    return exponents + (rounded.x & 0xffffu | rounded.y << 16) - 0x00800080u;
}
