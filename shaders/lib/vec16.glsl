// vec16: 16 bytes of consecutive elements as one uvec4, from and to memory, for
// memory-bound kernels.
//
//     VEC            elements in 16 bytes: 8 of 16 bits, 4 of 32
//     QUADS          vec4 that they make
//     quad(v, q)     elements 4q to 4q+3, widened
//     pack(a, b)     the reverse, rounded: a are elements 0 to 3, b elements 4 to 7
//
// TENSOR16(at, access, Name, name) binds a tensor twice, as `uvec4 name16[]` and as `ELEM name1[]`.
// LOAD16(name) makes `uvec4 load_name(uint i, uint n)`, its elements i to i+n-1; those from n on are
// 0. STORE16 makes `void store_name(uint i, uint n, uvec4 v)` in the same way. n may exceed VEC. With
// `const bool ALIGNED` every i is a multiple of VEC and a whole vector is one access; the rest goes
// element by element. READ16 and WRITE16 bind a tensor and make its function.
#extension GL_EXT_control_flow_attributes : require

#include "element.glsl"

#if defined(ELEM_F32)

const uint VEC = 4;
const uint QUADS = 1;

vec4 quad(const uvec4 v, const uint q) { return uintBitsToFloat(v); }
uvec4 pack(const vec4 a, const vec4 b) { return floatBitsToUint(a); }

#define ELEM_BITS(x) floatBitsToUint(x)
#define ELEM_AT(v, e) uintBitsToFloat(v[e])
#define PUT_BITS(v, e, bits) v[e] = bits

#else

#include "pack2.glsl"

const uint VEC = 8;
const uint QUADS = 2;

vec4 quad(const uvec4 v, const uint q) { return widen(q == 0 ? v.xy : v.zw); }

uvec4 pack(const vec4 a, const vec4 b) {
    return uvec4(pack2(a.x, a.y), pack2(a.z, a.w), pack2(b.x, b.y), pack2(b.z, b.w));
}

#define ELEM_BITS(x) uint(x)
#define ELEM_AT(v, e) uint16_t(v[(e) / 2] >> ((e) % 2 * 16))
#define PUT_BITS(v, e, bits) v[(e) / 2] |= (bits) << ((e) % 2 * 16)

#endif

#define TENSOR16(at, access, Name, name)                                    \
    layout(binding = at, scalar) access buffer Name { uvec4 name##16[]; };  \
    layout(binding = at, scalar) access buffer Name##1 { ELEM name##1[]; };

#define LOAD16(name)                                        \
    uvec4 load_##name(const uint i, const uint n) {         \
        if (ALIGNED && n >= VEC) {                          \
            return name##16[i / VEC];                       \
        }                                                   \
        uvec4 v = uvec4(0);                                 \
        [[unroll]] for (uint e = 0; e < VEC; e++) {         \
            if (e < n) {                                    \
                PUT_BITS(v, e, ELEM_BITS(name##1[i + e]));  \
            }                                               \
        }                                                   \
        return v;                                           \
    }

#define STORE16(name)                                               \
    void store_##name(const uint i, const uint n, const uvec4 v) {  \
        if (ALIGNED && n >= VEC) {                                  \
            name##16[i / VEC] = v;                                  \
            return;                                                 \
        }                                                           \
        [[unroll]] for (uint e = 0; e < VEC; e++) {                 \
            if (e < n) {                                            \
                name##1[i + e] = ELEM_AT(v, e);                     \
            }                                                       \
        }                                                           \
    }

#define READ16(at, Name, name) TENSOR16(at, readonly, Name, name) LOAD16(name)
#define WRITE16(at, Name, name) TENSOR16(at, writeonly, Name, name) STORE16(name)
