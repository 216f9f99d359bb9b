// formats: storage formats that a specialization constant chooses, for tensors with another
// format than the module's operands (lib/element.glsl).
#extension GL_EXT_shader_16bit_storage : require

const uint FORMAT_F32 = 0;
const uint FORMAT_F16 = 1;
const uint FORMAT_BF16 = 2;

#include "narrow_f16.glsl"
#include "narrow_bf16.glsl"

// narrow_to rounds to the nearest 16-bit number, ties to even, and returns its bits.
uint narrow_to(const uint FORMAT, const float x) {
    return FORMAT == FORMAT_F16 ? narrow_f16(x) : narrow_bf16(x);
}

// pack_to returns two numbers in one word, the first in the low half, rounded like narrow_to.
uint pack_to(const uint FORMAT, const float low, const float high) {
    return FORMAT == FORMAT_F16 ? pack_f16(low, high) : pack_bf16(low, high);
}

// widen_from returns the two numbers in a word, the one in the low half first.
vec2 widen_from(const uint FORMAT, const uint x) {
    return FORMAT == FORMAT_F16 ? unpackHalf2x16(x) : uintBitsToFloat(uvec2(x << 16, x & 0xffff0000u));
}
