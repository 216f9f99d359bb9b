// gemm_epilogue: from sums of products to C, as lib/gemm_params.glsl says, and the
// way of C, R and X to and from memory.
//
// The includer binds each of C, R and X as `vec4 c4[]`, `uvec2 c2[]`, `float c1[]`
// and `uint16_t c16[]` (r4, ..., x16), includes lib/gemm_params.glsl and
// lib/formats.glsl, and has GL_EXT_shader_16bit_storage.
#ifndef LIB_GEMM_EPILOGUE_GLSL
#define LIB_GEMM_EPILOGUE_GLSL

#include "silu.glsl"

// DEFINE_OUT(get, put, vec4s, vec2s, floats, halves) makes `vec4 get(at, WIDE)` and
// `void put(at, x, WIDE)` for the elements at..at+3 of a tensor, at being a multiple
// of 4; and without WIDE for element `at` alone, which is x.x.
#define DEFINE_GET(get, vec4s, vec2s, floats, halves)                                                        \
    vec4 get(const uint at, const bool WIDE) {                                                               \
        if (OUT_FORMAT == FORMAT_F32) {                                                                      \
            if (WIDE) {                                                                                      \
                return vec4s[at >> 2];                                                                       \
            }                                                                                                \
            return vec4(floats[at], 0.0, 0.0, 0.0);                                                          \
        }                                                                                                    \
        if (WIDE) {                                                                                          \
            return vec4(widen_from(OUT_FORMAT, vec2s[at >> 2].x), widen_from(OUT_FORMAT, vec2s[at >> 2].y)); \
        }                                                                                                    \
        return vec4(widen_from(OUT_FORMAT, uint(halves[at])).x, 0.0, 0.0, 0.0);                              \
    }

#define DEFINE_PUT(put, vec4s, vec2s, floats, halves)                                           \
    void put(const uint at, const vec4 x, const bool WIDE) {                                    \
        if (OUT_FORMAT == FORMAT_F32) {                                                         \
            if (WIDE) {                                                                         \
                vec4s[at >> 2] = x;                                                             \
            } else {                                                                            \
                floats[at] = x.x;                                                               \
            }                                                                                   \
        } else if (WIDE) {                                                                      \
            vec2s[at >> 2] = uvec2(narrow_to(OUT_FORMAT, x.x) | narrow_to(OUT_FORMAT, x.y) << 16,  \
                                   narrow_to(OUT_FORMAT, x.z) | narrow_to(OUT_FORMAT, x.w) << 16); \
        } else {                                                                                \
            halves[at] = uint16_t(narrow_to(OUT_FORMAT, x.x));                                  \
        }                                                                                       \
    }

DEFINE_GET(get_c, c4, c2, c1, c16)
DEFINE_PUT(put_c, c4, c2, c1, c16)
DEFINE_GET(get_r, r4, r2, r1, r16)
DEFINE_GET(get_x, x4, x2, x1, x16)
DEFINE_PUT(put_x, x4, x2, x1, x16)

// finish writes the elements (row, col) to (row, col + 3) of C from their sums, or
// without WIDE element (row, col) from sum.x.
void finish(const uint batch, const uint row, const uint col, const vec4 sum, const bool WIDE) {
    const uint c = p.c_offset + batch * p.c_stride_b + row * p.c_stride + col;
    const uint x = p.x_offset + batch * p.x_stride_b + row * p.x_stride + col;
    vec4 v = p.alpha * sum;
    if (READ_C) {
        v += p.beta * get_c(c, WIDE);
    }
    if (KEEP_X) {
        put_x(x, v, WIDE);
    }
    if (SILU) {
        v = silu(v);
    }
    if (TIMES_DSILU) {
        v *= dsilu(get_x(x, WIDE));
    }
    if (RESIDUAL) {
        v += get_r(p.r_offset + batch * p.r_stride_b + row * p.r_stride + col, WIDE);
    }
    put_c(c, v, WIDE);
}

#endif
