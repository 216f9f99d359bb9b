// bwd_fused_matrix: all three gradients of attention in one kernel on cooperative
// matrices, for every path that has them.
//
// A block is BLOCK_M keys of one key head, ROW_TILES * MAT_M of them for each subgroup.
// A workgroup, one of the `splits` of its head, takes blocks split, split + splits, …
// one after the other. For each it does what lib/bwd_dkv_matrix.glsl does; and then,
// as dX^T of all keys of the block is at hand, it computes dQ as far as it depends on them:
//
//     for each head of the group, for each tile of rows
//         S^T  = K Q^T;   P^T  = exp2(S^T * scale - lse2)
//         dP^T = V dO^T;  dX^T = P^T * (dP^T - Delta)
//         dV += P^T dO;   dK += dX^T Q
//         dQ of the tile += dX K
//
// dX of a subgroup's keys passes through shared memory, where K of the block stays: each
// subgroup computes some of the MAT_M x MAT_N matrices of dQ, over all keys of the block.
// Sums over the blocks of a split are in memory, which no other workgroup touches; an
// element is always the same subgroup's.
// With ONE_BLOCK there is nothing to add, and dQ itself is written.

#include "softmax.glsl"
#include "mask.glsl"
#include "tile_bwd.glsl"

const uint KEY_TILES = BLOCK_M / MAT_N;
const uint EXCHANGE_LD = BLOCK_N / 8 + 1;  // one more for the banks
const uint PART_LD = DIM_TILES * MAT_N;   // elements of a row of the sums in memory
const uint DQ_TILES = BLOCK_N / MAT_M * DIM_TILES;
const uint OWN_DQ_TILES = (DQ_TILES + NUM_SUBGROUPS - 1) / NUM_SUBGROUPS;  // of one subgroup

shared uvec4 keys[BLOCK_M * LD];                // K, (BLOCK_M, head_dim)
shared uvec4 exchange[BLOCK_M * EXCHANGE_LD];  // dX^T, (BLOCK_M, BLOCK_N)

// The matrices of dQ of a tile that one subgroup computes.
struct OwnDQ { MatC at[OWN_DQ_TILES]; };

// dq_row and dq_col return where matrix number i of a subgroup is in dQ of the tile, in matrices.
uint dq_row(const uint i) { return (gl_SubgroupID + i * NUM_SUBGROUPS) / DIM_TILES; }
uint dq_col(const uint i) { return (gl_SubgroupID + i * NUM_SUBGROUPS) % DIM_TILES; }

bool is_dq(const uint i) {
    return DQ_TILES % NUM_SUBGROUPS == 0 || gl_SubgroupID + i * NUM_SUBGROUPS < DQ_TILES;
}

// part_at returns where matrix number i is in a tile of the sums in memory.
uint part_at(const uint base, const uint i) {
    return base + dq_row(i) * MAT_M * PART_LD + dq_col(i) * MAT_N;
}

// load_dq returns the sums over the blocks before, which start at base; 0 for the first
// block of a split.
void load_dq(out OwnDQ dQ, const uint base, const bool first) {
    [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
        dQ.at[i] = MatC(0.0);
    }
    if (!ONE_BLOCK && !first) {
        [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
            if (is_dq(i)) {
                coopMatLoad(dQ.at[i], part_dq, part_at(base, i), PART_LD, ROW_MAJOR);
            }
        }
    }
}

void add_dq(inout OwnDQ dQ) {
    [[unroll]] for (uint n = 0; n < KEY_TILES; n++) {
        fence(n);
        [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
            // Past the last matrix of dQ others are computed once more: a branch would copy the sums.
            const uint row = min(dq_row(i), BLOCK_N / MAT_M - 1);
            MatA left;  // dX^T read by columns
            MatB right;
            coopMatLoad(left, exchange, n * MAT_N * EXCHANGE_LD + row * (MAT_M / 8), EXCHANGE_LD, COLUMN_MAJOR);
            coopMatLoad(right, keys, n * MAT_N * LD + dq_col(i) * (MAT_N / 8), LD, ROW_MAJOR);
            dQ.at[i] = coopMatMulAdd(left, right, dQ.at[i]);
        }
    }
}

void store_dq(const OwnDQ dQ, const uint base) {
    [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
        if (is_dq(i)) {
            coopMatStore(dQ.at[i], part_dq, part_at(base, i), PART_LD, ROW_MAJOR);
        }
    }
}

// put_dq_tile writes dQ of the rows of a tile, of which the first starts at base, by
// way of the tile of Q. Rows beyond `last` are not there.
void put_dq_tile(const OwnDQ dQ, const uint base, const uint last) {
    [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
        const MatA result = to_left(dQ.at[i] * (p.scale_log2 * LN_2), false);
        if (is_dq(i)) {
            coopMatStore(result, tile, dq_row(i) * MAT_M * LD + dq_col(i) * (MAT_N / 8), LD, ROW_MAJOR);
        }
    }
    barrier();  // dQ written before it is read
    [[unroll]] for (uint i = 0; i < COPIES; i++) {
        if (copies(i) && copies_dim(copy_col(i)) && copy_row(i) <= last) {
            put_dq(base + copy_row(i) * p.dq_stride_s + copy_col(i) * 8, tile[copy_row(i) * LD + copy_col(i)]);
        }
    }
}

const uint KEY_COPIES = (BLOCK_M * ROW8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

// load_keys copies K of a block into shared memory, and the subgroup's part of it into
// matrices. Keys past `last` repeat it; in shared memory those past `last_seen`, which
// may be negative, are then 0: they add nothing to dQ, and may be NaN.
void load_keys(out Owned own, const uint base, const uint last, const int last_seen) {
    barrier();  // the block before is read
    [[unroll]] for (uint i = 0; i < KEY_COPIES; i++) {
        const uint row = row_of_copy(i, ROW8);
        const uint col = col_of_copy(i, ROW8);
        if (is_copy(i, BLOCK_M * ROW8)) {
            keys[row * LD + col] = copies_dim(col) ? load_k(base + min(row, last) * p.k_stride_s + col * 8) : uvec4(0);
        }
    }
    barrier();  // keys written before they are read
    [[unroll]] for (uint i = 0; i < ROW_TILES * DIM_TILES; i++) {
        const uint row = gl_SubgroupID * SUBGROUP_ROWS + i / DIM_TILES * MAT_M;
        coopMatLoad(own.at[i], keys, row * LD + i % DIM_TILES * (MAT_N / 8), LD, ROW_MAJOR);
    }
    if (last_seen < int(BLOCK_M) - 1) {
        barrier();  // keys read before they are cleared
        const uint first = uint(last_seen + 1) * LD;
        [[dont_unroll]] for (uint i = first + gl_LocalInvocationIndex; i < BLOCK_M * LD; i += WORKGROUP_SIZE) {
            keys[i] = uvec4(0);
        }
    }
}

#include "bwd_dkv_matrix.glsl"

void backward_fused() {
    const uint blocks = (p.seq_kv + BLOCK_M - 1) / BLOCK_M;
    [[dont_unroll]] for (uint block = gl_WorkGroupID.x; block < blocks; block += gl_NumWorkGroups.x) {
        backward_block(block, block == gl_WorkGroupID.x);
        // The sums of this block are in memory before the sums of the next are loaded.
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    }
}
