// narrow_f16: float to the nearest float16, ties to even, as its bits. Vulkan leaves the
// rounding of its own conversion open.
#ifndef LIB_NARROW_F16_GLSL
#define LIB_NARROW_F16_GLSL

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

#endif
