// pack2: two floats as 16-bit elements in one word, the first in the low half, rounded
// to nearest even. Both are results of arithmetic, so that a NaN is a quiet one: for
// bfloat16 this takes about half the instructions of two calls of narrow, which were a
// third of those of norm_fwd.
//
// The includer includes lib/element.glsl first, with a 16-bit format.
#ifndef LIB_PACK2_GLSL
#define LIB_PACK2_GLSL

uint pack2(const float low, const float high) {
#if defined(ELEM_BF16)
    const uvec2 bits = uvec2(floatBitsToUint(low), floatBitsToUint(high));
    // A NaN becomes the one that rounding does not change; the others are below it.
    const uvec2 magnitude = min(bits & 0x7fffffffu, uvec2(0x7fc00000u));
    const uvec2 rounded = magnitude + 0x7fffu + (magnitude >> 16 & 1u);
    return rounded.x >> 16 | rounded.y & 0xffff0000u | bits.x >> 16 & 0x8000u | bits.y & 0x80000000u;
#else
    return narrow(low) | narrow(high) << 16;
#endif
}

#endif
