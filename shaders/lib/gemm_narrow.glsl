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

// The rows of W that meet the block's columns of op(B), with zeros beyond n.
const uint ROW4 = (COLUMNS + 3) / 4;  // vec4 of a row
shared vec4 w_tile[BLOCK_N * ROW4];

// load_w puts them there. It comes before gemm, and after a barrier where a block was
// before.
void load_w(const Work w) {
    for (uint i = gl_LocalInvocationIndex; i < BLOCK_N * ROW4; i += WORKGROUP_SIZE) {
        const uint x = w.col + i / ROW4;
        const uint at = p.r_offset + w.batch * p.r_stride_b + x * p.r_stride;
        vec4 row = vec4(0.0);
        [[unroll]] for (uint e = 0; e < 4; e++) {
            const uint o = i % ROW4 * 4 + e;
            if (x < p.n && o < COLUMNS) {
                row[e] = WIDEN(r16[at + o]);
            }
        }
        w_tile[i] = row;
    }
}

void fetch_strip(const Work w, const uint row, const uint col, const uint strip) {}

// store_strip multiplies a strip.
void store_strip(const Work w, const uint row, const uint col, const uint strip) {
    const uint base = gl_SubgroupID * MAT_M * OUT_LD;
    const uint end = min(p.n, w.col + (gl_SubgroupID % SUBGROUPS_N + 1) * SUBGROUP_N);  // of the subgroup's columns
    const uint lane = gl_SubgroupInvocationID;
    [[unroll]] for (uint round = 0; round < LANE_ROWS; round++) {
        const uint r = round * SUBGROUP_SIZE + lane % MAT_M;
        float y[COLUMNS];
        [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
            y[o] = 0.0;
        }
        [[unroll]] for (uint first = 0; first < OUT_COLS4; first += ROW_LANES) {
            const uint q = first + lane / MAT_M;
            const vec4 v = silu(p.alpha * uintBitsToFloat(tile[base + r * OUT_LD + q]));
            [[unroll]] for (uint e = 0; e < 4; e++) {
                const uint x = col + q * 4 + e;
                const float h = x < end ? v[e] : 0.0;  // what is past n may be a NaN
                [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
                    y[o] += h * w_tile[(x - w.col) * ROW4 + o / 4][o % 4];
                }
            }
        }
        [[unroll]] for (uint lanes = MAT_M; lanes < SUBGROUP_SIZE; lanes *= 2) {
            [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
                y[o] += subgroupShuffleXor(y[o], lanes);
            }
        }
        if (lane < MAT_M && row + r < p.m) {
            add_row(w, row + r, strip % OUT_STAGES == 0, y);
        }
    }
}

#endif
