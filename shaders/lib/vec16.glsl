// vec16: 16 bytes of consecutive elements as one uvec4, from and to memory, for
// memory-bound kernels.
//
//     VEC            elements in 16 bytes: 8 of 16 bits, 4 of 32
//     QUADS          vec4 that they make
//     quad(v, q)     elements 4q to 4q+3, widened
//     pack(a, b)     the reverse, rounded: a are elements 0 to 3, b elements 4 to 7
//
// DEFINE_LOAD16(name, vecs, elems) makes `uvec4 name(uint i, uint n)`, elements i to
// i+n-1 of a buffer that is bound twice, as `uvec4 vecs[]` and as `ELEM elems[]`; those
// from n on are 0. DEFINE_STORE16 makes `void name(uint i, uint n, uvec4 v)` in the same
// way. n may exceed VEC. With `const bool ALIGNED` every i is a multiple of VEC and a
// whole vector is one access; the rest goes element by element.
//
// The includer includes lib/element.glsl first.

#if defined(ELEM_F32)

const uint VEC = 4;
const uint QUADS = 1;

vec4 quad(const uvec4 v, const uint q) {
    return uintBitsToFloat(v);
}

uvec4 pack(const vec4 a, const vec4 b) {
    return floatBitsToUint(a);
}

#define ELEM_BITS(x) floatBitsToUint(x)
#define ELEM_AT(v, e) uintBitsToFloat(v[e])
#define PUT_BITS(v, e, bits) v[e] = bits

#else

#include "pack2.glsl"

const uint VEC = 8;
const uint QUADS = 2;

vec4 quad(const uvec4 v, const uint q) {
    return widen(q == 0 ? v.xy : v.zw);
}

uvec4 pack(const vec4 a, const vec4 b) {
    return uvec4(pack2(a.x, a.y), pack2(a.z, a.w), pack2(b.x, b.y), pack2(b.z, b.w));
}

#define ELEM_BITS(x) uint(x)
#define ELEM_AT(v, e) uint16_t(v[(e) / 2] >> ((e) % 2 * 16))
#define PUT_BITS(v, e, bits) v[(e) / 2] |= (bits) << ((e) % 2 * 16)

#endif

#define DEFINE_LOAD16(name, vecs, elems)                              \
    uvec4 name(const uint i, const uint n) {                          \
        if (ALIGNED && n >= VEC) {                                    \
            return vecs[i / VEC];                                     \
        }                                                             \
        uvec4 v = uvec4(0);                                           \
        [[unroll]] for (uint e = 0; e < VEC; e++) {                   \
            if (e < n) {                                              \
                PUT_BITS(v, e, ELEM_BITS(elems[i + e]));              \
            }                                                         \
        }                                                             \
        return v;                                                     \
    }

#define DEFINE_STORE16(name, vecs, elems)                             \
    void name(const uint i, const uint n, const uvec4 v) {            \
        if (ALIGNED && n >= VEC) {                                    \
            vecs[i / VEC] = v;                                        \
            return;                                                   \
        }                                                             \
        [[unroll]] for (uint e = 0; e < VEC; e++) {                   \
            if (e < n) {                                              \
                elems[i + e] = ELEM_AT(v, e);                         \
            }                                                         \
        }                                                             \
    }
