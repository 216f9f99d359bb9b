// gemm_tensors: the parameters and tensors of the GEMM kernels on matrices, their matrices, and the
// block of C that a workgroup computes, as a grid of subgroups with matrices of sums.

#include "element.glsl"
#include "formats.glsl"
#include "gemm_params.glsl"

layout(binding = 0, scalar) readonly buffer A { uvec4 a8[]; };
layout(binding = 1, scalar) readonly buffer B { uvec4 b8[]; };
#define OUT_BINDING 2
#include "gemm_out.glsl"
#include "matrix_types.glsl"

const uint SUBGROUP_M = TILES_M * MAT_M;
const uint SUBGROUP_N = TILES_N * MAT_N;
const uint BLOCK_M = SUBGROUPS_M * SUBGROUP_M;
const uint BLOCK_N = SUBGROUPS_N * SUBGROUP_N;
const uint SUBGROUP_SIZE = WORKGROUP_SIZE / (SUBGROUPS_M * SUBGROUPS_N);
