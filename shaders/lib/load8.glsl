// load8: eight consecutive 16-bit elements as one uvec4, from and to memory.
//
// READ8(at, Name, name) binds a tensor twice, as `uvec4 name8[]` and as `uint16_t name16[]`, and makes
// `uvec4 load_name(uint i)`, its elements i..i+7. With `const bool ALIGNED` every i is a multiple of
// 8, and it is one load of 16 bytes. Otherwise rows start anywhere, and the elements are gathered one
// by one. WRITE8 makes `void put_name(uint i, uvec4 x)` in the same way.

#define READ8(at, Name, name)                                                            \
    layout(binding = at, scalar) readonly buffer Name { uvec4 name##8[]; };              \
    layout(binding = at, scalar) readonly buffer Name##16 { uint16_t name##16[]; };      \
    uvec4 load_##name(const uint i) {                                                    \
        if (ALIGNED) {                                                                   \
            return name##8[i >> 3];                                                      \
        }                                                                                \
        uvec4 words;                                                                     \
        [[unroll]] for (uint w = 0; w < 4; w++) {                                        \
            words[w] = uint(name##16[i + 2 * w]) | uint(name##16[i + 2 * w + 1]) << 16;  \
        }                                                                                \
        return words;                                                                    \
    }

#define WRITE8(at, Name, name)                                                        \
    layout(binding = at, scalar) writeonly buffer Name { uvec4 name##8[]; };          \
    layout(binding = at, scalar) writeonly buffer Name##16 { uint16_t name##16[]; };  \
    void put_##name(const uint i, const uvec4 x) {                                    \
        if (ALIGNED) {                                                                \
            name##8[i >> 3] = x;                                                      \
            return;                                                                   \
        }                                                                             \
        [[unroll]] for (uint e = 0; e < 8; e++) {                                     \
            name##16[i + e] = uint16_t(x[e / 2] >> (e % 2 * 16));                     \
        }                                                                             \
    }
