// load8: eight consecutive 16-bit elements as one uvec4, from and to memory.
//
// DEFINE_LOAD8(name, vec8, elem) makes `uvec4 name(uint i)`, the elements
// i..i+7 of a buffer that is bound twice: as `uvec4 vec8[]` and as
// `uint16_t elem[]`. With `const bool ALIGNED` every i is a multiple of 8, and it is one
// load of 16 bytes. Otherwise rows start anywhere, and the elements are gathered one by
// one. DEFINE_STORE8(name, vec8, elem) makes `void name(uint i, uvec4 x)` in the same way.

#define DEFINE_LOAD8(name, vec8, elem)                                                   \
    uvec4 name(const uint i) {                                                           \
        if (ALIGNED) {                                                                   \
            return vec8[i >> 3];                                                         \
        }                                                                                \
        uvec4 words;                                                                     \
        [[unroll]] for (uint w = 0; w < 4; w++) {                                        \
            words[w] = uint(elem[i + 2 * w]) | uint(elem[i + 2 * w + 1]) << 16;          \
        }                                                                                \
        return words;                                                                    \
    }

#define DEFINE_STORE8(name, vec8, elem)                                                  \
    void name(const uint i, const uvec4 x) {                                             \
        if (ALIGNED) {                                                                   \
            vec8[i >> 3] = x;                                                            \
            return;                                                                      \
        }                                                                                \
        [[unroll]] for (uint e = 0; e < 8; e++) {                                        \
            elem[i + e] = uint16_t(x[e / 2] >> (e % 2 * 16));                            \
        }                                                                                \
    }
