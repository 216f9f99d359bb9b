// cache8: caches of keys and values in 8 bits (attention.CacheFormat).
//
//     e4m3   a byte an element: sign, 4 bits of exponent, 3 of fraction; a key head has a scale
//     q8_0   a byte an element, an integer; BLOCK elements of a row have a scale
//
// The scales of q8_0 lie as their elements do: element i of k has scale number i / BLOCK, counted
// from the first elements of both tensors.

const uint E4M3 = 0;
const uint Q8_0 = 1;

const uint BLOCK = 32;

#include "from_e4m3.glsl"

// to_float16 rounds products of an integer of 8 bits and a float16 to float16, ties to even: the last
// place of 1.5 * 2^13 times a power of two is the place of a float16 with this exponent. Subnormal ones
// are float16 as they are.
vec4 to_float16(const vec4 x) {
    const vec4 power = uintBitsToFloat(floatBitsToUint(x) & 0x7f800000u);
    precise const vec4 above = x + 12288.0 * power;
    precise const vec4 rounded = above - 12288.0 * power;
    return rounded;
}

// widen8 returns the four elements of a word in order: of e4m3 times 2^-8, of q8_0 times their
// scale.
vec4 widen8(const uint w, const float scale) {
    if (CACHE_FORMAT == E4M3) {
        const uvec2 h = e4m3_halves(w);
        const vec2 x = unpackHalf2x16(h.x);
        const vec2 y = unpackHalf2x16(h.y);
        return vec4(x.x, y.x, x.y, y.y);
    }
    return to_float16(vec4(ivec4(w << 24, w << 16, w << 8, w) >> 24) * scale);
}
