// gemm_columns: the division of a strip of lib/gemm_sums.glsl among invocations, for a product
// with a skinny matrix W, which has a row for each column of the strip. An invocation has the same
// columns in every strip, so that it loads their rows of W from shared memory once. It has some
// rows of four neighbouring columns, with one load each.
//
//     first = 0, ROW_LANES, ...           row_of(first) of the strip
//     j = 0, 1, ... LANE_QUADS - 1        columns quad_of(j) to quad_of(j) + 3 of the strip
//
// The includer includes lib/gemm_sums.glsl before. lib/gemm_w.glsl has the rows of W.
#extension GL_KHR_shader_subgroup_shuffle : require

const uint STRIP_LANES = OUT_COLS4 < SUBGROUP_SIZE ? OUT_COLS4 : SUBGROUP_SIZE;  // that share a row
const uint LANE_QUADS = OUT_COLS4 / STRIP_LANES;
const uint ROW_LANES = SUBGROUP_SIZE / STRIP_LANES;

uint quad_of(const uint j) { return (j * SUBGROUP_SIZE + gl_SubgroupInvocationID % STRIP_LANES) * 4; }
uint row_of(const uint first) { return first + gl_SubgroupInvocationID / STRIP_LANES; }
