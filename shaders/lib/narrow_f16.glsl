// narrow_f16: float to the nearest float16, ties to even, as its bits. Vulkan leaves the
// rounding of its own conversion open.

uint narrow_f16(const float x) {
    const uint bits = floatBitsToUint(x);
    const uint magnitude = bits & 0x7fffffffu;
    uint h;
    if (magnitude > 0x7f800000u) {
        h = 0x7e00u;  // NaN
    } else if (magnitude >= 0x477ff000u) {
        h = 0x7c00u;  // 65520 and more round to infinity
    } else if (magnitude >= 0x38800000u) {
        h = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;  // exponent bias 127 to 15
    } else {
        // Subnormal: the last kept bit, 2^-24, is the last bit of a float in
        // [0.5, 1), so this addition rounds.
        h = floatBitsToUint(uintBitsToFloat(magnitude) + 0.5) - 0x3f000000u;
    }
    return bits >> 16 & 0x8000u | h;
}

// pack_f16 is narrow_f16 of two numbers, in one word, the first in the low half, without
// branches. 1.5 * 2^13 times a power of two has the same last place as a float16 with this
// exponent. So adding it rounds, and the conversion has nothing left to round. A result of 2^16
// becomes infinite on the way through 2^128.
uint pack_f16(const float low, const float high) {
    const uvec2 bits = uvec2(floatBitsToUint(low), floatBitsToUint(high));
    const vec2 power = clamp(uintBitsToFloat(bits & 0x7f800000u), 1.0 / 16384.0, 65536.0);
    precise const vec2 above = vec2(low, high) + 12288.0 * power;
    precise const vec2 rounded = above - 12288.0 * power;
    precise const vec2 limited = rounded * uintBitsToFloat(0x77800000u) * uintBitsToFloat(0x07800000u);  // 2^112, 2^-112
    return packHalf2x16(limited) & 0x7fff7fffu | bits.x >> 16 & 0x8000u | bits.y & 0x80000000u;  // also the sign of a zero
}
