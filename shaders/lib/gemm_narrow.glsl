// gemm_narrow: strips of lib/gemm_matrix.glsl through silu, and times the rows of W that they
// meet: a matrix with few columns for each product. With KEEP_X the sums of products are
// written, too, (m, n) of ELEM for each product; at X of lib/gemm_params.glsl, whose
// OUT_ALIGNED is that of X alone.
//
// The includer includes what lib/gemm_w.glsl needs and lib/gemm_matrix.glsl before, and
// defines add_row.
#ifndef LIB_GEMM_NARROW_GLSL
#define LIB_GEMM_NARROW_GLSL

#include "gemm_columns.glsl"
#include "gemm_w.glsl"
#include "pack2.glsl"
#include "silu.glsl"

// add_row takes y, which the columns of a strip add to a row of the result. First says that
// the strip is the first of this row and subgroup in the block; those after it are of the
// same invocation.
void add_row(const Work w, const uint row, const bool first, const float y[COLUMNS]);

// keep_x writes v, four columns of a row of X from col on, as far as they lie before end.
void keep_x(const uint batch, const uint row, const uint col, const uint end, const vec4 v) {
    const uint at = p.x_offset + batch * p.x_stride_b + row * p.x_stride + col;
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

// store_strip multiplies a strip. An invocation has sums over its columns for all of its rows.
// The STRIP_LANES that share these rows then exchange halves of them, and halves of those, until
// each has the whole sums of one row, or where there are fewer rows, some have the same.
void store_strip(const Work w, const uint row, const uint col, const uint strip) {
    const uint base = gl_SubgroupID * MAT_M * OUT_LD;
    const uint end = columns_end(w, p.n);
    const uint lane = gl_SubgroupInvocationID % STRIP_LANES;
    float sums[LANE_ROWS * COLUMNS];
    [[unroll]] for (uint i = 0; i < LANE_ROWS * COLUMNS; i++) {
        sums[i] = 0.0;
    }
    [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
        const uint x = col + quad_of(j);
        const bvec4 exists = lessThan(x + uvec4(0, 1, 2, 3), uvec4(end));
        vec4 w_quad[COLUMNS];
        [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
            w_quad[o] = w_tile[o * BLOCK_N4 + min((x - w.col) / 4, BLOCK_N4 - 1)];
        }
        [[unroll]] for (uint i = 0; i < LANE_ROWS; i++) {
            const vec4 v = p.alpha * uintBitsToFloat(tile[base + row_of(i * ROW_LANES) * OUT_LD + quad_of(j) / 4]);
            if (KEEP_X && row + row_of(i * ROW_LANES) < p.m) {
                keep_x(w.batch, row + row_of(i * ROW_LANES), x, end, v);
            }
            const vec4 h = mix(vec4(0.0), silu(v), exists);  // what is past the end may be a NaN
            [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
                sums[i * COLUMNS + o] += dot(h, w_quad[o]);
            }
        }
    }
    [[unroll]] for (uint level = 0; STRIP_LANES >> level > 1; level++) {
        const uint lanes = STRIP_LANES >> level + 1;  // between those that exchange
        const uint rows = LANE_ROWS >> level;         // of each
        const bool upper = (lane & lanes) != 0;
        [[unroll]] for (uint i = 0; i < max(rows / 2, 1) * COLUMNS; i++) {
            if (rows > 1) {
                const float other = sums[i + rows / 2 * COLUMNS];
                sums[i] = (upper ? other : sums[i]) + subgroupShuffleXor(upper ? sums[i] : other, lanes);
            } else {
                sums[i] += subgroupShuffleXor(sums[i], lanes);
            }
        }
    }
    const bool one_of_same = lane * LANE_ROWS % STRIP_LANES == 0;
    [[unroll]] for (uint i = 0; i < max(LANE_ROWS / STRIP_LANES, 1); i++) {
        const uint y_row = row + row_of((lane * LANE_ROWS / STRIP_LANES + i) * ROW_LANES);
        float y[COLUMNS];
        [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
            y[o] = sums[i * COLUMNS + o];
        }
        if (one_of_same && y_row < p.m) {
            add_row(w, y_row, strip % OUT_STAGES == 0, y);
        }
    }
}

#endif
