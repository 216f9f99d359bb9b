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
#ifndef LIB_BWD_FUSED_MATRIX_GLSL
#define LIB_BWD_FUSED_MATRIX_GLSL

#include "softmax.glsl"
#include "mask.glsl"
#include "tile_bwd.glsl"
#include "block_dq.glsl"

const uint KEY_COPIES = (BLOCK_M * ROW8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

shared vec2 stats[STREAM];  // lse2 and Delta of the rows of the tile

// The lse2 of rows past the last one: no score reaches it, so their weights are 0.
const float NO_ROW = 1.7e38;  // about FLT_MAX/2

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

// backward_block adds up the gradients of one block. The first of a share finds nothing
// in memory.
void backward_block(const uint block, const bool first) {
    const uint tid = gl_LocalInvocationIndex;
    const uint kv_head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    const uint col0 = block * BLOCK_M;                               // first key of the block
    const int key0 = int(col0 + gl_SubgroupID * SUBGROUP_ROWS);      // of the subgroup
    const uint last_key = p.seq_kv - 1 - col0;                       // within the block
    const uint last_row = p.seq_q - 1;

    Own K_, V_;
    load_keys(K_, p.k_offset + batch * p.k_stride_b + kv_head * p.k_stride_h + col0 * p.k_stride_s, last_key,
              max(visible_keys(int(last_row)) - int(col0), 0) - 1);
    load_own(V_, TENSOR_V, p.v_offset + batch * p.v_stride_b + kv_head * p.v_stride_h + col0 * p.v_stride_s, p.v_stride_s, last_key);
    Gradient dK_, dV_;
    [[unroll]] for (uint i = 0; i < ROW_TILES * DIM_TILES; i++) {
        dK_.at[i] = MatC(0.0);
        dV_.at[i] = MatC(0.0);
    }
    const MatC place = element_index();
    uint column[COL_RUN];  // of the elements that this invocation holds
    [[unroll]] for (uint e = 0; e < COL_RUN; e++) {
        column[e] = uint(place[e]) % MAT_N;
    }

    // Rows from the first that sees the first key on, in whole tiles; all where dQ of
    // those before is not written otherwise. From full_row on all see all keys of the block.
    const uint first_row = CAUSAL && !ONE_BLOCK ? uint(max(int(col0) - p.causal_shift, 0)) / STREAM * STREAM : 0;
    const uint full_row = CAUSAL ? uint(max(int(col0 + BLOCK_M) - 1 - p.causal_shift, 0) + int(STREAM) - 1) / STREAM * STREAM : 0;

    [[dont_unroll]] for (uint h = 0; h < p.heads_per_kv; h++) {
        const uint head = kv_head * p.heads_per_kv + h;
        const uint q_base = p.q_offset + batch * p.q_stride_b + head * p.q_stride_h;
        const uint do_base = p.do_offset + batch * p.do_stride_b + head * p.do_stride_h;
        const uint rows_base = p.rows_offset + batch * p.rows_stride_b + head * p.rows_stride_h;
        const uint dq_base = p.dq_offset + batch * p.dq_stride_b + head * p.dq_stride_h;
        const uint part_base = dq_base + gl_WorkGroupID.x * p.dq_stride_s;
        uvec4 next_q[COPIES];
        uvec4 next_do[COPIES];
        if (PREFETCH) {
            const uint row = min(first_row, last_row);
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                next_q[i] = fetch(TENSOR_Q, q_base + row * p.q_stride_s, p.q_stride_s, i, last_row - row);
                next_do[i] = fetch(TENSOR_DO, do_base + row * p.do_stride_s, p.do_stride_s, i, last_row - row);
            }
        }
        // Two phases, unrolled: tiles with a mask, then the rest.
        uint row0 = first_row;
        [[unroll]] for (uint phase = CAUSAL ? 0 : 1; phase < (CAUSAL && !SPLIT_LOOP ? 1 : 2); phase++) {
            const bool MASKED = phase == 0;
            [[dont_unroll]] for (; row0 < (MASKED && SPLIT_LOOP ? min(full_row, p.seq_q) : p.seq_q); row0 += STREAM) {
                if (!PREFETCH) {
                    [[unroll]] for (uint i = 0; i < COPIES; i++) {
                        next_q[i] = fetch(TENSOR_Q, q_base + row0 * p.q_stride_s, p.q_stride_s, i, last_row - row0);
                        next_do[i] = fetch(TENSOR_DO, do_base + row0 * p.do_stride_s, p.do_stride_s, i, last_row - row0);
                    }
                }
                vec2 lse2_delta = vec2(NO_ROW, 0.0);
                if (tid < STREAM && row0 + tid < p.seq_q) {
                    lse2_delta = rows[rows_base + row0 + tid];
                }
                barrier();  // tile and exchange before are read
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    put(i, next_q[i], next_do[i]);
                }
                if (tid < STREAM) {
                    stats[tid] = lse2_delta;
                }
                barrier();  // tile and stats written before they are read
                if (PREFETCH) {
                    const uint row = min(row0 + STREAM, last_row);  // past the end the last row again
                    [[unroll]] for (uint i = 0; i < COPIES; i++) {
                        next_q[i] = fetch(TENSOR_Q, q_base + row * p.q_stride_s, p.q_stride_s, i, last_row - row);
                        next_do[i] = fetch(TENSOR_DO, do_base + row * p.do_stride_s, p.do_stride_s, i, last_row - row);
                    }
                }
                OwnDQ dQ;  // loaded early: it comes from far
                load_dq(dQ, part_base + row0 * PART_LD, first);

                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    Weights S, dP;
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        S.at[r] = MatC(0.0);
                        dP.at[r] = MatC(0.0);
                    }
                    product(S, K_, n * MAT_N);
                    product(dP, V_, STREAM + n * MAT_N);
                    vec2 stat[COL_RUN];
                    int visible[COL_RUN];
                    [[unroll]] for (uint e = 0; e < COL_RUN; e++) {
                        stat[e] = stats[n * MAT_N + column[e]];
                        const uint row = row0 + n * MAT_N + column[e];
                        visible[e] = MASKED && row < p.seq_q ? visible_keys(int(row)) - key0 : 0;
                    }
                    Left P_, dX_;
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        MatC weight, dX;
                        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                            weight[i] = exp2(fma(S.at[r][i], p.scale_log2, -stat[i % COL_RUN].x));
                            dX[i] = weight[i] * (dP.at[r][i] - stat[i % COL_RUN].y);
                            if (MASKED) {  // K and V of hidden keys may be NaN
                                const bool seen = int(r * MAT_M + uint(place[i]) / MAT_N) < visible[i % COL_RUN];
                                weight[i] = seen ? weight[i] : 0.0;
                                dX[i] = seen ? dX[i] : 0.0;
                            }
                        }
                        P_.at[r] = to_left(weight, true);
                        dX_.at[r] = to_left(dX, true);
                        coopMatStore(dX_.at[r], exchange, (gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M) * EXCHANGE_LD + n * (MAT_N / 8),
                                     EXCHANGE_LD, gl_CooperativeMatrixLayoutRowMajor);
                    }
                    accumulate(dV_, P_, STREAM + n * MAT_N);
                    accumulate(dK_, dX_, n * MAT_N);
                }

                barrier();  // exchange written before it is read, and tile read before put_dq_tile
                add_dq(dQ);
                if (ONE_BLOCK) {
                    put_dq_tile(dQ, dq_base + row0 * p.dq_stride_s, last_row - row0);
                } else {
                    store_dq(dQ, part_base + row0 * PART_LD);
                }
            }
        }
    }

    store_gradient(dK_, p.scale_log2 * LN_2, false, p.dx_offset + batch * p.dx_stride_b + kv_head * p.dx_stride_h + col0 * p.dx_stride_s,
                   p.dx_stride_s, last_key);
    store_gradient(dV_, 1.0, true, p.dv_offset + batch * p.dv_stride_b + kv_head * p.dv_stride_h + col0 * p.dv_stride_s, p.dv_stride_s, last_key);
}

void backward_fused() {
    const uint blocks = (p.seq_kv + BLOCK_M - 1) / BLOCK_M;
    [[dont_unroll]] for (uint block = gl_WorkGroupID.x; block < blocks; block += gl_NumWorkGroups.x) {
        backward_block(block, block == gl_WorkGroupID.x);
        // The sums of this block are in memory before those of the next are loaded.
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    }
}

#endif
