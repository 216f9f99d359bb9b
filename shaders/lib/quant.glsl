// quant: numbers as elements of 8 bits that share a scale (dtype.Quant).
//
// The includer declares `const uint FORMAT`, the number of a dtype.Quant.

#include "to_e4m3.glsl"

const uint Q8_0 = 2;  // FORMAT
const uint E4M3 = 3;
const float LARGEST = FORMAT == E4M3 ? 448.0 : 127.0;

// scale_of returns amax / LARGEST, rounded to nearest. A device's own division may be off. Here the
// first quotient is off by two units at most, and what it leaves of amax is exact: the terms are
// 128 of 127 and 512 of 448, a difference of two numbers of which none is twice the other.
float scale_of(const float amax) {
    if (amax < uintBitsToFloat(0x0d800000u)) {  // 2^-100
        return 0.0;
    }
    const bool small = amax < 1.0;  // powers of two, so that nothing overflows or is subnormal
    const float x = amax * (small ? 4294967296.0 * 4294967296.0 : 1.0 / 65536.0);
    const float quotient = x * (1.0 / LARGEST);
    precise const float above = x - quotient * (FORMAT == E4M3 ? 512.0 : 128.0);
    precise const float rest = above + quotient * (FORMAT == E4M3 ? 64.0 : 1.0);
    precise const float rounded = quotient + rest * (1.0 / LARGEST);
    return rounded * (small ? 1.0 / (4294967296.0 * 4294967296.0) : 65536.0);
}

// narrowed returns four elements as bytes.
uint narrowed(const vec4 x, const float inverse) {
    uvec4 y;
    if (FORMAT == E4M3) {
        y = uvec4(to_e4m3(x.x * inverse), to_e4m3(x.y * inverse), to_e4m3(x.z * inverse), to_e4m3(x.w * inverse));
    } else {
        const bvec4 nan = greaterThan(floatBitsToUint(x) & 0x7fffffffu, uvec4(0x7f800000u));
        y = uvec4(ivec4(clamp(roundEven(mix(x, vec4(0.0), nan) * inverse), -127.0, 127.0))) & 0xffu;
    }
    return y.x | y.y << 8 | y.z << 16 | y.w << 24;
}
