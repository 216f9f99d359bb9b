// gemm_skinny_bwd: the gradients behind gemm_skinny, from matrix products on cooperative
// matrices that never reach memory.
//
//     pre  = alpha * op(A) * op(B)                  batch by batch
//     dpre = (dY * transpose(W)) o silu'(pre)
//     dW   = transpose(silu(pre)) * dY
//
//     op(A)  (m, k)  ELEM, from A (m, k) with A_BY_K, else (k, m); last axis contiguous
//     op(B)  (k, n)  ELEM, from B (n, k) with B_BY_K, else (k, n); likewise
//     W      (n, COLUMNS)  ELEM, likewise; at R of lib/gemm_params.glsl
//     dY     (m, COLUMNS)  ELEM, likewise; at X
//     C      (m, n)  ELEM: dpre, and zeros up to a multiple of 8 columns; offset and strides
//            are such multiples
//     S      (blocks of rows, batch, n, s_stride) f32: dW of the rows of a block;
//            gemm_combine adds them
//
// Sums of products are not rounded before silu. lib/gemm_matrix.glsl has the algorithm. A
// lane has four columns of a strip of pre, and some of its rows. So its part of dW, a sum
// over rows, is four columns of COLUMNS sums in registers.
//
// Dispatch: (x, y, batch) with x * y >= tiles.
#version 460
#include "lib/gemm_constants.glsl"
layout(constant_id = 25) const uint COLUMNS = 3;       // of W and dY
layout(local_size_x_id = 0) in;

#define EPILOGUE_ID 16
#include "lib/element.glsl"
#include "lib/formats.glsl"
#include "lib/pack2.glsl"
#include "lib/gemm_tensors.glsl"
#include "lib/gemm_matrix.glsl"
#include "lib/gemm_columns.glsl"

const uint QUADS = OUT_STAGES * LANE_QUADS;  // of a lane: dW outlives the strips of a block
#include "lib/gemm_skinny_bwd.glsl"

// store_strip writes dpre of a strip, and adds its rows to dW.
void store_strip(const Work w, const uint row, const uint col, const uint strip) {
    const uint base = gl_SubgroupID * MAT_M * OUT_LD;
    const uint end = columns_end(w, (p.n + 7) / 8 * 8);
    const uint stage = strip % OUT_STAGES;  // a constant, so that quads stay in registers
    [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
        const uint x = col + quad_of(j);
        if (x < end) {
            const bvec4 exists = lessThan(x + uvec4(0, 1, 2, 3), uvec4(p.n));
            load_quad(stage * LANE_QUADS + j, (x - w.col) / 4);
            [[unroll]] for (uint first = 0; first < MAT_M; first += ROW_LANES) {
                const uint r = row_of(first);
                const bool row_exists = row + r < p.m;
                const vec4 pre = scaled(uintBitsToFloat(tile[base + r * OUT_LD + quad_of(j) / 4]));
                // What is past m and n may be a NaN. With 0 in its place all sums get 0.
                const vec4 v = mix(vec4(0.0), pre, bvec4(uvec4(exists) & uint(row_exists)));
                const vec4 dpre = gradient(v, row - w.row + r, stage * LANE_QUADS + j);
                if (row_exists) {
                    c2[(ROW_AT(c, w.batch, row + r) + x) / 4] = uvec2(pack2(dpre.x, dpre.y), pack2(dpre.z, dpre.w));
                }
            }
        }
    }
}

// store_dw writes the sum of dW over all rows of the block: lanes meet by shuffles, and
// subgroups in w_tile, which W has left, one row of them after the other.
void store_dw(const Work w) {
    [[unroll]] for (uint lanes = STRIP_LANES; lanes < SUBGROUP_SIZE; lanes *= 2) {
        [[unroll]] for (uint i = 0; i < QUADS * COLUMNS; i++) {
            dw_quads[i] += subgroupShuffleXor(dw_quads[i], lanes);
        }
    }
    [[dont_unroll]] for (uint s = 0; s < SUBGROUPS_M; s++) {
        barrier();  // w_tile is read by strips, or written by the subgroups before
        if (gl_SubgroupID / SUBGROUPS_N == s && gl_SubgroupInvocationID < STRIP_LANES) {
            [[unroll]] for (uint i = 0; i < QUADS; i++) {
                const uint x = i / LANE_QUADS * OUT_COLS4 * 4 + quad_of(i % LANE_QUADS);  // within the subgroup's columns
                if (x < SUBGROUP_N) {
                    put_quad(i, (gl_SubgroupID % SUBGROUPS_N * SUBGROUP_N + x) / 4, s == 0);
                }
            }
        }
    }
    barrier();  // w_tile is written
    store_tile(w.batch, w.row, w.col);
}

void main() {
    const Work w = next_work();
    if (w.exists) {
        load_tiles(w.batch, w.row, w.col);  // the barriers of gemm come before they are read
        gemm(w);
        store_dw(w);
    }
}
