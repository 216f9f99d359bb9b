// any16: VEC consecutive elements, from and to tensors whose formats (lib/formats.glsl) are
// specialization constants.
//
//     Bits                     elements as memory holds them, from the start of a; of 32 bits 4 in a, the rest in b
//     Floats                   elements 0 to 3 and 4 to 7
//     widened(FORMAT, bits)    exact
//     narrowed(FORMAT, floats) rounded to nearest even
//
// ANY16(at, access, Name, name) binds a tensor. LOAD_ANY16(name, FORMAT) makes `Bits load_name(uint i,
// uint n)`, its elements i to i+n-1; those from n on are 0. STORE_ANY16 makes `void store_name(uint i,
// uint n, Bits v)` in the same way. n may exceed VEC.
//
// The includer declares the specialization constants VEC, which is 4 if all tensors are float32, else 8,
// and ALIGNED: every i is a multiple of 16 bytes, and whole vectors are accesses of 16 bytes.
#extension GL_EXT_control_flow_attributes : require

#include "formats.glsl"

struct Bits { uvec4 a, b; };
struct Floats { vec4 a, b; };

const uint QUADS = VEC / 4;

const Bits NO_BITS = Bits(uvec4(0), uvec4(0));
const Floats ZEROS = Floats(vec4(0.0), vec4(0.0));

Floats sum_of(const Floats x, const Floats y) { return Floats(x.a + y.a, x.b + y.b); }

Floats widened(const uint FORMAT, const Bits v) {
    if (FORMAT == FORMAT_F32) {
        return Floats(uintBitsToFloat(v.a), uintBitsToFloat(v.b));
    }
    return Floats(vec4(widen_from(FORMAT, v.a.x), widen_from(FORMAT, v.a.y)), vec4(widen_from(FORMAT, v.a.z), widen_from(FORMAT, v.a.w)));
}

Bits narrowed(const uint FORMAT, const Floats x) {
    if (FORMAT == FORMAT_F32) {
        return Bits(floatBitsToUint(x.a), floatBitsToUint(x.b));
    }
    return Bits(uvec4(pack_to(FORMAT, x.a.x, x.a.y), pack_to(FORMAT, x.a.z, x.a.w), pack_to(FORMAT, x.b.x, x.b.y), pack_to(FORMAT, x.b.z, x.b.w)), uvec4(0));
}

#define ANY16(at, access, Name, name)                                           \
    layout(binding = at, scalar) access buffer Name { uvec4 name##_128[]; };    \
    layout(binding = at, scalar) access buffer Name##32 { uint name##_32[]; };  \
    layout(binding = at, scalar) access buffer Name##16 { uint16_t name##_16[]; };

#define LOAD_ANY16(name, FORMAT)                                                  \
    Bits load_##name(const uint i, const uint n) {                                \
        Bits v = NO_BITS;                                                         \
        if (ALIGNED && n >= VEC) {                                                \
            v.a = name##_128[FORMAT == FORMAT_F32 ? i / 4 : i / 8];               \
            if (FORMAT == FORMAT_F32 && VEC == 8) {                               \
                v.b = name##_128[i / 4 + 1];                                      \
            }                                                                     \
            return v;                                                             \
        }                                                                         \
        [[unroll]] for (uint e = 0; e < 8; e++) {                                 \
            if (e < min(n, VEC) && FORMAT != FORMAT_F32) {                        \
                v.a[e / 2] |= uint(name##_16[i + e]) << (e % 2 * 16);             \
            } else if (e < min(n, VEC) && e < 4) {                                \
                v.a[e % 4] = name##_32[i + e];                                    \
            } else if (e < min(n, VEC)) {                                         \
                v.b[e % 4] = name##_32[i + e];                                    \
            }                                                                     \
        }                                                                         \
        return v;                                                                 \
    }

#define STORE_ANY16(name, FORMAT)                                                 \
    void store_##name(const uint i, const uint n, const Bits v) {                 \
        if (ALIGNED && n >= VEC) {                                                \
            name##_128[FORMAT == FORMAT_F32 ? i / 4 : i / 8] = v.a;               \
            if (FORMAT == FORMAT_F32 && VEC == 8) {                               \
                name##_128[i / 4 + 1] = v.b;                                      \
            }                                                                     \
            return;                                                               \
        }                                                                         \
        [[unroll]] for (uint e = 0; e < 8; e++) {                                 \
            if (e < min(n, VEC) && FORMAT != FORMAT_F32) {                        \
                name##_16[i + e] = uint16_t(v.a[e / 2] >> (e % 2 * 16));          \
            } else if (e < min(n, VEC)) {                                         \
                name##_32[i + e] = e < 4 ? v.a[e % 4] : v.b[e % 4];               \
            }                                                                     \
        }                                                                         \
    }
