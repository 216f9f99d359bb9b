// element: the storage format of Q, K, V and O, chosen by -DELEM_F32, -DELEM_F16 or -DELEM_BF16.
//
//     ELEM     one stored element, as the buffer holds it
//     ELEM4    four of them, loaded at once
//     T        the arithmetic type of matrix elements (16-bit formats)
//     widen    ELEM4 to vec4, exactly
//     WIDEN    ELEM to float, exactly
//     NARROW   float to ELEM, round to nearest even
//     TO_T     float to T, to nearest
//     WEIGHT_TO_T   the same, faster, for softmax weights: none is negative or NaN
//     ROUND_TO_T    float to the nearest float that is a T
//
// The 16-bit formats are read as integers, so that a device needs 16-bit storage, but no
// float16 or bfloat16 arithmetic. The rounding of float to float16 is spelled out, because
// Vulkan leaves its direction open.
#extension GL_EXT_shader_16bit_storage : require

#if defined(ELEM_F32)

#define ELEM float
#define ELEM4 vec4

#define WIDEN(x) (x)
#define NARROW(x) (x)

vec4 widen(const vec4 x) { return x; }

#else

#define ELEM uint16_t
#define ELEM4 uvec2
// Macros, because a function with 16-bit arguments needs 16-bit arithmetic.
#define WIDEN(x) widen(uint(x))
#define NARROW(x) uint16_t(narrow(x))

#if defined(ELEM_F16)

#define T float16_t
#define TO_T(x) T(x)
#define WEIGHT_TO_T(x) T(x)
#define ROUND_TO_T(x) (x)

vec4 widen(const uvec2 x) { return vec4(unpackHalf2x16(x.x), unpackHalf2x16(x.y)); }
float widen(const uint x) { return unpackHalf2x16(x).x; }

#include "narrow_f16.glsl"
#define narrow narrow_f16

#elif defined(ELEM_BF16)

// A conversion from float truncates on NVIDIA (driver 580), so the bits are rounded here.
#define T bfloat16_t
#define TO_T(x) uintBitsToBFloat16EXT(uint16_t(narrow(x)))
#define WEIGHT_TO_T(x) uintBitsToBFloat16EXT(uint16_t((floatBitsToUint(x) + 0x8000u) >> 16))
#define ROUND_TO_T(x) uintBitsToFloat(narrow(x) << 16)

vec4 widen(const uvec2 x) {
    return uintBitsToFloat(uvec4(x.x << 16, x.x & 0xffff0000u, x.y << 16, x.y & 0xffff0000u));
}

float widen(const uint x) { return uintBitsToFloat(x << 16); }

#include "narrow_bf16.glsl"
#define narrow narrow_bf16

#endif
#endif

// READ4(at, Name, name) binds a tensor twice, as name4 of ELEM4 and as name1 of ELEM, and makes
// `vec4 load_name(uint i)`, its elements i..i+3. With `const bool ALIGNED` every i is a multiple of 4.
#define READ4(at, Name, name)                                                                                 \
    layout(binding = at, scalar) readonly buffer Name { ELEM4 name##4[]; };                                   \
    layout(binding = at, scalar) readonly buffer Name##1 { ELEM name##1[]; };                                 \
    vec4 load_##name(const uint i) {                                                                          \
        if (ALIGNED) {                                                                                        \
            return widen(name##4[i >> 2]);                                                                    \
        }                                                                                                     \
        return vec4(WIDEN(name##1[i]), WIDEN(name##1[i + 1]), WIDEN(name##1[i + 2]), WIDEN(name##1[i + 3]));  \
    }
