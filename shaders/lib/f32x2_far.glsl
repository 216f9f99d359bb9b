// f32x2_far: lib/f32x2.glsl for products with separate sums of hi*hi and of hi*lo.
//
//     x = (hi + lo / LO_SCALE) * 2^(e - TOP)
//
// A lo that is LO_SCALE times as large stays away from float16's smallest number. Its error is
// at most 2^-25 or half of its last bit, which is 2^-50 of the largest element with the exponent e.
// Elements down to 2^-27 of that largest have all 23 bits of their parts; smaller ones have
// the absolute error.

#include "f32x2.glsl"

const float LO_SCALE = 2048.0;  // the largest lo, 2^3, becomes 2^14

// nearest_half returns the nearest float16, of numbers below 2^15. By integers, for the
// reasons that round_to_hi has.
vec4 nearest_half(const vec4 x) {
    // The last bit of a float16 below 2^-14 is 2^-24, and so is the last bit of 0.5 + |x|.
    const uvec4 units = floatBitsToUint(min(abs(x), 0.25) + 0.5) - floatBitsToUint(0.5);
    const vec4 small = vec4(units) / float(1u << 24) * sign(x);
    return mix(round_to_hi(x), small, lessThan(abs(x), vec4(1.0 / float(1u << 14))));
}

// split_far returns the parts of x * scale.
Parts8 split_far(const Elems8 x, const float scale) {
    const vec4 a = x.first * scale;
    const vec4 b = x.second * scale;
    const vec4 a_hi = nearest_half(a);
    const vec4 b_hi = nearest_half(b);
    return Parts8(pack8(a_hi, b_hi), pack8((a - a_hi) * LO_SCALE, (b - b_hi) * LO_SCALE));
}
