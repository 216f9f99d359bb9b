// gemm_grid: the block of C that a workgroup computes, as a grid of subgroups with
// matrices of sums.
//
// The includer declares SUBGROUPS_M, SUBGROUPS_N, TILES_M, TILES_N, MAT_M, MAT_N and
// WORKGROUP_SIZE.

const uint SUBGROUP_M = TILES_M * MAT_M;
const uint SUBGROUP_N = TILES_N * MAT_N;
const uint BLOCK_M = SUBGROUPS_M * SUBGROUP_M;
const uint BLOCK_N = SUBGROUPS_N * SUBGROUP_N;
const uint SUBGROUP_SIZE = WORKGROUP_SIZE / (SUBGROUPS_M * SUBGROUPS_N);
