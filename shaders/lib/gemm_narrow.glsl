// gemm_narrow: strips of lib/gemm_matrix.glsl through silu, and times the rows of W that they
// meet: a matrix (n, COLUMNS) of ELEM for each product, with few columns, at R of
// lib/gemm_params.glsl.
//
// The includer declares the specialization constant COLUMNS, includes lib/element.glsl and
// lib/gemm_matrix.glsl before, and defines add_row.
#ifndef LIB_GEMM_NARROW_GLSL
#define LIB_GEMM_NARROW_GLSL

#include "silu.glsl"

// Lanes that share a row of a strip, and rows that share a lane.
const uint ROW_LANES = SUBGROUP_SIZE > MAT_M ? SUBGROUP_SIZE / MAT_M : 1;
const uint LANE_ROWS = SUBGROUP_SIZE < MAT_M ? MAT_M / SUBGROUP_SIZE : 1;

// add_row takes y, which the columns of a strip add to a row of the result. First says that
// the strip is the first of this row and subgroup in the block; those after it are of the
// same invocation.
void add_row(const Work w, const uint row, const bool first, const float y[COLUMNS]);

// store_strip multiplies a strip.
void store_strip(const Work w, const uint row, const uint col) {
    const uint base = gl_SubgroupID * MAT_M * OUT_LD;
    const uint end = min(p.n, w.col + (gl_SubgroupID % SUBGROUPS_N + 1) * SUBGROUP_N);  // of the subgroup's columns
    const uint lane = gl_SubgroupInvocationID;
    [[unroll]] for (uint round = 0; round < LANE_ROWS; round++) {
        const uint r = round * SUBGROUP_SIZE + lane % MAT_M;
        float y[COLUMNS];
        [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
            y[o] = 0.0;
        }
        for (uint q = lane / MAT_M; q < OUT_COLS4; q += ROW_LANES) {
            const vec4 v = silu(p.alpha * uintBitsToFloat(tile[base + r * OUT_LD + q]));
            [[unroll]] for (uint e = 0; e < 4; e++) {
                const uint x = col + q * 4 + e;
                if (x < end) {
                    const uint at = p.r_offset + w.batch * p.r_stride_b + x * p.r_stride;
                    [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
                        y[o] += v[e] * WIDEN(r16[at + o]);
                    }
                }
            }
        }
        [[unroll]] for (uint lanes = MAT_M; lanes < SUBGROUP_SIZE; lanes *= 2) {
            [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
                y[o] += subgroupShuffleXor(y[o], lanes);
            }
        }
        if (lane < MAT_M && row + r < p.m) {
            add_row(w, row + r, col % SUBGROUP_N == 0, y);
        }
    }
}

#endif
