// gemm_order: the block of C that a workgroup computes.
//
// GROUP_M rows of blocks form a group, which is taken column by column, so that workgroups
// that run at the same time share rows of A and columns of B in the cache. For GROUP_M = 2
//
//     4  2  0
//     5  3  1
//    10  8  6
//    11  9  7
//
// The last column comes first, so that other blocks fill the end: its blocks may hang over the
// edge of C, and then take longer.
//
// Dispatch: (x, y, batch * splits) with x * y >= tiles.
//
// The includer declares GROUP_M, BLOCK_M and BLOCK_N, and includes lib/gemm_params.glsl.

// The block of a workgroup; exists is false past the last block.
struct Work {
    uint row;    // first row of the block
    uint col;    // first column of the block
    uint batch;
    uint split;
    bool exists;
};

Work next_work() {
    const uint id = BLOCK_ID;
    const uint blocks_m = (p.m + BLOCK_M - 1) / BLOCK_M;
    const uint blocks_n = (p.n + BLOCK_N - 1) / BLOCK_N;
    const uint first = id / (GROUP_M * blocks_n) * GROUP_M;  // row of blocks where the group begins
    const uint rows = min(blocks_m - first, GROUP_M);
    const uint within = id % (GROUP_M * blocks_n);
    Work w;
    w.row = (first + within % rows) * BLOCK_M;
    w.col = (blocks_n - 1 - within / rows) * BLOCK_N;
    w.batch = gl_WorkGroupID.z / p.splits;
    w.split = gl_WorkGroupID.z % p.splits;
    w.exists = id < p.tiles;
    return w;
}
