// gemm_epilogue: from sums of products to C, as lib/gemm_params.glsl says, and the
// way of C, R, X and S to and from memory.
//
// The includer includes lib/gemm_out.glsl, lib/gemm_params.glsl and
// lib/formats.glsl, and has GL_EXT_shader_16bit_storage.
#ifndef LIB_GEMM_EPILOGUE_GLSL
#define LIB_GEMM_EPILOGUE_GLSL

#include "silu.glsl"

// DEFINE_GET(get, vec4s, vec2s, floats, halves) makes `vec4 get(at, WIDTH)`, the
// elements at..at+WIDTH-1 of a tensor, and DEFINE_PUT `void put(at, x, WIDTH)`, for a
// constant WIDTH of 1, 2, or 4; at is a multiple of 4 then.
#define DEFINE_GET(get, vec4s, vec2s, floats, halves)                                                        \
    vec4 get(const uint at, const uint WIDTH) {                                                              \
        if (OUT_FORMAT == FORMAT_F32) {                                                                      \
            if (WIDTH == 4) {                                                                                \
                return vec4s[at >> 2];                                                                       \
            }                                                                                                \
            return vec4(floats[at], floats[at + WIDTH - 1], 0.0, 0.0);                                       \
        }                                                                                                    \
        if (WIDTH == 4) {                                                                                    \
            return vec4(widen_from(OUT_FORMAT, vec2s[at >> 2].x), widen_from(OUT_FORMAT, vec2s[at >> 2].y)); \
        }                                                                                                    \
        return vec4(widen_from(OUT_FORMAT, uint(halves[at]) | uint(halves[at + WIDTH - 1]) << 16), 0.0, 0.0); \
    }

#define DEFINE_PUT(put, vec4s, vec2s, floats, halves)                                              \
    void put(const uint at, const vec4 x, const uint WIDTH) {                                      \
        if (OUT_FORMAT == FORMAT_F32) {                                                            \
            if (WIDTH == 4) {                                                                      \
                vec4s[at >> 2] = x;                                                                \
                return;                                                                            \
            }                                                                                      \
            floats[at] = x.x;                                                                      \
            if (WIDTH == 2) {                                                                      \
                floats[at + 1] = x.y;                                                              \
            }                                                                                      \
        } else if (WIDTH == 4) {                                                                   \
            vec2s[at >> 2] = uvec2(narrow_to(OUT_FORMAT, x.x) | narrow_to(OUT_FORMAT, x.y) << 16,  \
                                   narrow_to(OUT_FORMAT, x.z) | narrow_to(OUT_FORMAT, x.w) << 16); \
        } else {                                                                                   \
            halves[at] = uint16_t(narrow_to(OUT_FORMAT, x.x));                                     \
            if (WIDTH == 2) {                                                                      \
                halves[at + 1] = uint16_t(narrow_to(OUT_FORMAT, x.y));                             \
            }                                                                                      \
        }                                                                                          \
    }

DEFINE_GET(get_c, c4, c2, c1, c16)
DEFINE_PUT(put_c, c4, c2, c1, c16)
DEFINE_GET(get_r, r4, r2, r1, r16)
DEFINE_GET(get_x, x4, x2, x1, x16)
DEFINE_PUT(put_x, x4, x2, x1, x16)
DEFINE_PUT(put_s, s4, s2, s1, s16)

// finish writes the elements (row, col) to (row, col + WIDTH - 1) of C from their
// sums. With a WIDTH of 2, element col of C is at an even place.
void finish(const uint batch, const uint row, const uint col, const vec4 sum, const uint WIDTH) {
    const uint c = p.c_offset + batch * p.c_stride_b + row * p.c_stride + col;
    const uint x = p.x_offset + batch * p.x_stride_b + row * p.x_stride + col;
    vec4 v = p.alpha * sum;
    if (READS_C) {
        v += p.beta * get_c(c, WIDTH);
    }
    if (KEEP_X) {
        put_x(x, v, WIDTH);
    }
    if (SILU) {
        v = silu(v);
    }
    if (TIMES_DSILU) {
        const vec4 y = get_x(x, WIDTH);
        v *= dsilu(y);
        if (KEEP_S) {
            put_s(p.s_offset + batch * p.s_stride_b + row * p.s_stride + col, silu(y), WIDTH);
        }
    }
    if (RESIDUAL) {
        v += get_r(p.r_offset + batch * p.r_stride_b + row * p.r_stride + col, WIDTH);
    }
    if (WIDTH == 2 && OUT_FORMAT != FORMAT_F32) {
        c32[c >> 1] = narrow_to(OUT_FORMAT, v.x) | narrow_to(OUT_FORMAT, v.y) << 16;
    } else {
        put_c(c, v, WIDTH);
    }
}

#endif
