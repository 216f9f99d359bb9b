// gemm_runs: which runs of neighbouring columns of C an invocation has among the sums of its
// subgroup, where columns of op(B) are dealt out to matrices (lib/deal.glsl).
//
// Run number i, of RUNS, is RUN elements of a row: of each row of matrices, of its RUN_ROWS rows of a
// matrix, and of RUN_TILES matrices at a time.
//
// The includer defines RUNS_ID, the constant_id of DEAL_RUN and, one more, of DEAL_LANES, and includes
// lib/gemm_k_tile.glsl before.

layout(constant_id = RUNS_ID) const uint DEAL_RUN = 1;
layout(constant_id = RUNS_ID + 1) const uint DEAL_LANES = 0;  // 0: columns of op(B) lie as they are
#include "deal.glsl"

const bool DEALT = DEAL_LANES > 0;
const uint RUN_TILES = TILES_N_2 < 8 / DEAL_RUN ? TILES_N_2 : 8 / DEAL_RUN;  // deal_tiles(TILES_N)
const uint RUN = RUN_TILES * DEAL_RUN;
const uint RUN_WIDTH = RUN < 4 ? RUN : 4;
const uint RUN_ROWS = MAT_M * MAT_N / SUBGROUP_SIZE / DEAL_RUN;
const uint ROW_RUNS = TILES_N / RUN_TILES;  // of a row of C
const uint RUNS = TILES_M * RUN_ROWS * ROW_RUNS;

// run_row and run_col return where run number i is, within the rows and columns of a subgroup.
uint run_row(const uint i) {
    const uint lane = gl_SubgroupInvocationID / max(DEAL_LANES, 1);
    return i / (RUN_ROWS * ROW_RUNS) * MAT_M + i / ROW_RUNS % RUN_ROWS * (SUBGROUP_SIZE / max(DEAL_LANES, 1)) + lane;
}

uint run_col(const uint i) {
    return i % ROW_RUNS * RUN_TILES * MAT_N + gl_SubgroupInvocationID % max(DEAL_LANES, 1) * RUN;
}

// RUN_SUMS(sum, i, e) are elements e to e + 3 of run i of `MatC sum[TILES_M * TILES_N]`, of a run with
// fewer its first ones again.
#define RUN_TILE(i, e) (i / (RUN_ROWS * ROW_RUNS) * TILES_N + i % ROW_RUNS * RUN_TILES + (e) % RUN / DEAL_RUN)
#define RUN_SUM(sum, i, e) sum[RUN_TILE(i, e)][i / ROW_RUNS % RUN_ROWS * DEAL_RUN + (e) % RUN % DEAL_RUN]
#define RUN_SUMS(sum, i, e) vec4(RUN_SUM(sum, i, e), RUN_SUM(sum, i, e + 1), RUN_SUM(sum, i, e + 2), RUN_SUM(sum, i, e + 3))

// dealt_column returns which of the subgroup's columns is at a place of its matrices.
uint dealt_column(const uint place) {
    return DEALT ? dealt(TILES_N, place / MAT_N, place % MAT_N) : place;
}
