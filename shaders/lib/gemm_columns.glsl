// gemm_columns: which invocation has what of a strip of lib/gemm_sums.glsl where strips meet a
// matrix W with few columns, a row of it for each column of the strip: the same columns in
// every strip, so that rows of W come from shared memory once, and LANE_ROWS rows of four
// neighbouring columns, one load each.
//
//     first = 0, ROW_LANES, ...           row_of(first) of the strip
//     j = 0, 1, ... LANE_QUADS - 1        columns quad_of(j) to quad_of(j) + 3 of the strip
//
// The includer declares the specialization constant COLUMNS, includes lib/element.glsl and
// lib/gemm_sums.glsl before, and has W at R of lib/gemm_params.glsl.
#ifndef LIB_GEMM_COLUMNS_GLSL
#define LIB_GEMM_COLUMNS_GLSL

const uint STRIP_LANES = OUT_COLS4 < SUBGROUP_SIZE ? OUT_COLS4 : SUBGROUP_SIZE;  // that share a row
const uint LANE_QUADS = OUT_COLS4 / STRIP_LANES;
const uint ROW_LANES = SUBGROUP_SIZE / STRIP_LANES;
const uint LANE_ROWS = MAT_M / ROW_LANES;
const uint BLOCK_N4 = BLOCK_N / 4;

uint quad_of(const uint j) { return (j * SUBGROUP_SIZE + gl_SubgroupInvocationID % STRIP_LANES) * 4; }

uint row_of(const uint first) { return first + gl_SubgroupInvocationID / STRIP_LANES; }

// The rows of W that meet the block, (COLUMNS, BLOCK_N) in float32, with zeros beyond n.
shared vec4 w_tile[COLUMNS * BLOCK_N4];

// load_w puts them there. It comes before gemm, and after a barrier where a block was
// before.
void load_w(const Work w) {
    for (uint i = gl_LocalInvocationIndex; i < COLUMNS * BLOCK_N4; i += WORKGROUP_SIZE) {
        vec4 v = vec4(0.0);
        [[unroll]] for (uint e = 0; e < 4; e++) {
            const uint x = w.col + i % BLOCK_N4 * 4 + e;
            if (x < p.n) {
                v[e] = WIDEN(r16[p.r_offset + w.batch * p.r_stride_b + x * p.r_stride + i / BLOCK_N4]);
            }
        }
        w_tile[i] = v;
    }
}

#endif
