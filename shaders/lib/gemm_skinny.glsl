// gemm_skinny: silu of the strips of lib/gemm_matrix.glsl, times their rows of W, a skinny
// matrix for each product. With KEEP_X it also writes the sums of products, (m, n) of ELEM
// for each product, to X of lib/gemm_params.glsl; OUT_ALIGNED then speaks of X alone.
//
// The includer first includes lib/gemm_matrix.glsl and what lib/gemm_w.glsl needs, and
// defines add_row.

#include "gemm_columns.glsl"
#include "gemm_w.glsl"
#include "pack2.glsl"
#include "silu.glsl"

#ifndef SKINNY_ID
#define KEEP_STRIPS KEEP_X
#endif

// add_row adds y, the sum over the columns of a strip, to a row of the result. First says that the
// strip is the first of this row and subgroup in the block; the same invocation has the later ones.
void add_row(const Work w, const uint row, const bool first, const float y[COLUMNS]);

// keep_x writes v, four columns of a row of X from col on, as far as they lie before end.
void keep_x(const uint batch, const uint row, const uint col, const uint end, const vec4 v) {
    const uint at = ROW_AT(x, batch, row) + col;
    if (OUT_ALIGNED && col + 4 <= end) {
        x2[at / 4] = uvec2(pack2(v.x, v.y), pack2(v.z, v.w));
        return;
    }
    [[unroll]] for (uint e = 0; e < 4; e++) {
        if (col + e < end) {
            x16[at + e] = NARROW(v[e]);
        }
    }
}

// keep_strip writes X of a strip, neighbouring columns from neighbouring invocations.
void keep_strip(const Work w, const uint row, const uint col, const uint end) {
    const uint base = gl_SubgroupID * MAT_M * OUT_LD;
    [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
        [[unroll]] for (uint first = 0; first < MAT_M; first += ROW_LANES) {
            const uint r = row_of(first);
            if (row + r < p.m) {
                keep_x(w.batch, row + r, col + quad_of(j), end, scaled(uintBitsToFloat(tile[base + r * OUT_LD + quad_of(j) / 4])));
            }
        }
    }
}

// Lanes that share a row of a strip, and rows that share a lane.
const uint STRIP_TEAM = SUBGROUP_SIZE > MAT_M ? SUBGROUP_SIZE / MAT_M : 1;
const uint LANE_ROWS = SUBGROUP_SIZE < MAT_M ? MAT_M / SUBGROUP_SIZE : 1;

// store_strip multiplies a strip. An invocation owns a row, or a share of its columns, so that
// sums stay in place. With columns of its own for all rows, and sums by shuffles, the forward
// pass of heads took 30 % longer on an H200.
void store_strip(const Work w, const uint row, const uint col, const uint strip) {
    const uint base = gl_SubgroupID * MAT_M * OUT_LD;
    const uint end = columns_end(w, p.n);
    const uint lane = gl_SubgroupInvocationID;
    if (KEEP_STRIPS) {
        keep_strip(w, row, col, end);
    }
    [[unroll]] for (uint round = 0; round < LANE_ROWS; round++) {
        const uint r = round * SUBGROUP_SIZE + lane % MAT_M;
        float y[COLUMNS];
        [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
            y[o] = 0.0;
        }
        [[unroll]] for (uint first = 0; first < OUT_COLS4; first += STRIP_TEAM) {
            const uint q = first + lane / MAT_M;
            const uint x = col + q * 4;
            const vec4 v = silu(scaled(uintBitsToFloat(tile[base + r * OUT_LD + q])));
#ifdef SKINNY_ID
            if (DEALT) {  // a number is too large for lib/gemm_skinny_matrix.glsl
                [[unroll]] for (uint e = 0; e < 4; e++) {
                    const uint panel = gl_SubgroupID % SUBGROUPS_N * SUBGROUP_N;  // from the block's first column on
                    const uint place = min(x + e - w.col - panel, SUBGROUP_N - 1);
                    const uint c = panel + dealt_column(place);
                    const float one = w.col + c < p.n ? v[e] : 0.0;
                    [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
                        y[o] += one * w_tile[o * BLOCK_N4 + c / 4][c % 4];
                    }
                }
                continue;
            }
#endif
            const vec4 h = mix(vec4(0.0), v, lessThan(x + uvec4(0, 1, 2, 3), uvec4(end)));  // elements past the end may be NaN
            [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
                y[o] += dot(h, w_tile[o * BLOCK_N4 + min((x - w.col) / 4, BLOCK_N4 - 1)]);
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
