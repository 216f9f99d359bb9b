// narrow_bf16: float to the nearest bfloat16, ties to even, as its bits. Vulkan leaves the
// rounding of its own conversion open.
#ifndef LIB_NARROW_BF16_GLSL
#define LIB_NARROW_BF16_GLSL

uint narrow_bf16(const float x) {
    const uint bits = floatBitsToUint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return bits >> 16 | 0x40u;  // a NaN whose payload is cut off must stay one
    }
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

#endif
