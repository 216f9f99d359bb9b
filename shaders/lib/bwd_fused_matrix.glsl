// bwd_fused_matrix: all three gradients of attention in one kernel on cooperative
// matrices, for every path that has them.
//
// A block is BLOCK_M keys of one key head, ROW_TILES * MAT_M of them for each subgroup.
// A workgroup, one of the `shares` of its head, takes blocks share, share + shares, …
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
// Sums over the blocks of a share are in memory, which no other workgroup touches; an
// element is always the same subgroup's. attention_bwd_fused_sum.comp adds up the shares.
// With ONE_BLOCK there is nothing to add, and dQ itself is written.
//
// The includer declares ONE_BLOCK, includes lib/bwd_matrix_constants.glsl and lib/rows.glsl,
// and declares put_dq (lib/load8.glsl), `rows`, see attention_bwd_delta.comp, and `part_dq`.

#include "softmax.glsl"
#include "mask.glsl"
#include "tile_bwd.glsl"
#include "block_dq.glsl"

const uint KEY_COPIES = (BLOCK_M * ROW8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

// load_keys copies K of a block into shared memory, and the subgroup's part of it into
// matrices. Keys past `last` repeat it; in shared memory those past `last_seen`, which
// may be negative, are then 0: they add nothing to dQ, and may be NaN.
void load_keys(out Own own, const uint base, const uint last, const int last_seen) {
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
        coopMatLoad(own.at[i], keys, row * LD + i % DIM_TILES * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutRowMajor);
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
        // The sums of this block are in memory before those of the next are loaded.
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    }
}
