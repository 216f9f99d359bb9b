// bwd_dkv_matrix: the gradients of K and V on cooperative matrices, for every path that has them.
//
// A workgroup owns BLOCK_M keys of one key head, a subgroup ROW_TILES * MAT_M of them.
// K, V, dK and dV stay in registers; tiles of BLOCK_N rows of Q and dO pass through
// shared memory. Scores are computed transposed, keys by rows, so that the weights
// leave the first products as accumulators and enter the others as left matrices:
//
//     for each head of the group, for each tile of rows
//         S^T  = K Q^T;   P^T  = exp2(S^T * scale - lse2)
//         dP^T = V dO^T;  dX^T = P^T * (dP^T - Delta)
//         dV += P^T dO;   dK += dX^T Q
//
// lse2 and Delta belong to columns: an invocation holds COL_RUN of them in each
// matrix, and finds them in shared memory.
//
// With FEATURES, P and dX are what lib/feature_gradients.glsl makes of them, and the last
// axis of V, dV and dO is value_dim long. All tiles are in one loop; each subgroup looks
// whether the window cuts its part of a tile.
//
// With F32X2, tensors are float32 and the arithmetic is lib/tile_bwd_f32x2.glsl's.
//
// With WITH_DQ it is the walk of lib/bwd_fused_matrix.glsl, which computes dQ from dX^T beside.
//
// The includer includes lib/bwd_matrix_constants.glsl and lib/rows.glsl, and declares
// `rows`, see attention_bwd_delta.comp.

#include "softmax.glsl"
#include "mask.glsl"
#include "no_row.glsl"
#ifndef WITH_DQ
#define GROUP_HEADS gl_NumWorkGroups.x
#define BATCH_HEADS p.num_kv_heads
#define SAME_KV 1
#define LAST_FIRST false  // most rows see the first keys
#include "order.glsl"
#endif
#ifdef F32X2
#include "tile_bwd_f32x2.glsl"
#else
#include "tile_bwd.glsl"
#endif
#define TILE_ROWS BLOCK_N
#define TILE_KEYS BLOCK_M
#include "feature_gradients.glsl"

shared vec2 stats[BLOCK_N];  // lse2 and Delta of the rows of the tile

#ifdef WITH_DQ
#define SKIPS_ROWS CAUSAL && !ONE_BLOCK  // dQ of all rows is written, if not otherwise
// backward_block adds up the gradients of one block. The first of a split finds nothing in memory.
void backward_block(const uint block, const bool first) {
#else
#define SKIPS_ROWS CAUSAL
void backward_dkv() {
#endif
    const uint tid = gl_LocalInvocationIndex;
#ifdef WITH_DQ
    const uint kv_head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    const uint col0 = block * BLOCK_M;                               // first key of the block
#else
    const Work work = next_work();
    const uint kv_head = work.head;
    const uint batch = work.batch;
    const uint col0 = work.block * BLOCK_M;
#endif
    const int key0 = int(col0 + gl_SubgroupID * SUBGROUP_ROWS);      // of the subgroup
#ifdef FEATURES
    const uint first_row = enter_keys(batch, col0, BLOCK_M);
    if (col0 >= p.seq_kv) {
        return;
    }
#endif
    const uint last_key = p.seq_kv - 1 - col0;                       // within the block
    const uint last_row = p.seq_q - 1;

    Owned K_, V_;
#ifdef WITH_DQ
    load_keys(K_, HEAD_AT(k, batch, kv_head) + col0 * p.k_stride_s, last_key, max(visible_keys(int(last_row)) - int(col0), 0) - 1);
#else
    load_owned(K_, TENSOR_K, HEAD_AT(k, batch, kv_head) + col0 * p.k_stride_s, p.k_stride_s, last_key);
#endif
    load_owned(V_, TENSOR_V, HEAD_AT(v, batch, kv_head) + col0 * p.v_stride_s, p.v_stride_s, last_key);
    Gradient dK_, dV_;
    [[unroll]] for (uint i = 0; i < ROW_TILES * WIDE_TILES; i++) {
        dK_.at[i] = MatC(0.0);
        dV_.at[i] = MatC(0.0);
    }
    const MatC place = element_index();
    uint column[COL_RUN];  // of the elements that this invocation holds
    [[unroll]] for (uint e = 0; e < COL_RUN; e++) {
        column[e] = uint(place[e]) % MAT_N;
    }

#ifdef FEATURES
    const Block first_head = new_block(batch, kv_head * p.heads_per_kv, 0);
    bool unhidden[ROW_TILES * ROWS];  // by the key mask, the same for all heads
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint key = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(place[i * ROW_RUN]) / MAT_N;
            unhidden[r * ROWS + i] = unmasked(first_head, col0 + min(key, last_key));
        }
    }
    const uint HEADS = first_row < p.seq_q ? p.heads_per_kv : 0;  // no row sees a key
#else
    // Rows from the first that sees the first key on, in whole tiles; from full_row on
    // all rows see all keys of the block.
    const uint first_row = SKIPS_ROWS ? uint(max(int(col0) - p.causal_shift, 0)) / BLOCK_N * BLOCK_N : 0;
    const uint full_row = CAUSAL ? uint(max(int(col0 + BLOCK_M) - 1 - p.causal_shift, 0) + int(BLOCK_N) - 1) / BLOCK_N * BLOCK_N : 0;
#define HEADS p.heads_per_kv
#endif

    [[dont_unroll]] for (uint h = 0; h < HEADS; h++) {
        const uint head = kv_head * p.heads_per_kv + h;
        const uint q_base = HEAD_AT(q, batch, head);
        const uint do_base = HEAD_AT(do, batch, head);
        const uint rows_base = rows_at(batch, head);
#ifdef WITH_DQ
        const uint dq_base = HEAD_AT(dq, batch, head);
        const uint part_base = dq_base + gl_WorkGroupID.x * p.dq_stride_s;
#endif
        COPY next_q[COPIES];
        COPY next_do[COPIES];
        if (PREFETCH) {
            const uint row = min(first_row, last_row);
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                next_q[i] = fetch(TENSOR_Q, q_base + row * p.q_stride_s, p.q_stride_s, i, last_row - row);
                next_do[i] = fetch(TENSOR_DO, do_base + row * p.do_stride_s, p.do_stride_s, i, last_row - row);
            }
        }
        uint row0 = first_row;
#ifdef FEATURES
        const Block block = new_block(batch, head, 0);
        {
            [[dont_unroll]] for (; row0 < p.seq_q; row0 += BLOCK_N) {
#else
        // Two phases, unrolled: tiles with a mask, then the rest.
        [[unroll]] for (uint phase = CAUSAL ? 0 : 1; phase < (CAUSAL && !PEEL_MASK ? 1 : 2); phase++) {
            const bool MASKED = phase == 0;
            [[dont_unroll]] for (; row0 < (MASKED && PEEL_MASK ? min(full_row, p.seq_q) : p.seq_q); row0 += BLOCK_N) {
#endif
                if (!PREFETCH) {
                    [[unroll]] for (uint i = 0; i < COPIES; i++) {
                        next_q[i] = fetch(TENSOR_Q, q_base + row0 * p.q_stride_s, p.q_stride_s, i, last_row - row0);
                        next_do[i] = fetch(TENSOR_DO, do_base + row0 * p.do_stride_s, p.do_stride_s, i, last_row - row0);
                    }
                }
                vec2 lse2_delta = vec2(NO_ROW, 0.0);
                if (tid < BLOCK_N && row0 + tid < p.seq_q) {
                    lse2_delta = rows[rows_base + row0 + tid];
                }
                SHARE_AMAX(next_q, next_do)
                barrier();  // the tile before is read; with F32X2, tile_amax written before it is read
#ifdef F32X2
                const uvec2 exponents = tile_exponents();
#endif
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    put(i, next_q[i], next_do[i], exponents);
                }
                if (tid < BLOCK_N) {
                    stats[tid] = lse2_delta;
                }
                fill_kept(block, row0, col0);
                barrier();  // tile and stats written before they are read; tile_amax is read
                if (PREFETCH) {
                    const uint row = min(row0 + BLOCK_N, last_row);  // past the end the last row again
                    [[unroll]] for (uint i = 0; i < COPIES; i++) {
                        next_q[i] = fetch(TENSOR_Q, q_base + row * p.q_stride_s, p.q_stride_s, i, last_row - row);
                        next_do[i] = fetch(TENSOR_DO, do_base + row * p.do_stride_s, p.do_stride_s, i, last_row - row);
                    }
                }
#ifdef FEATURES
                const int key_end = key0 + int(SUBGROUP_ROWS);
                const int row_end = int(row0 + BLOCK_N);
                if (key0 >= visible_keys(row_end - 1) || key_end <= visible_from(int(row0))) {
                    continue;  // as below
                }
                const bool cut = row_end > int(p.seq_q) || key_end > visible_keys(int(row0)) || key0 < visible_from(row_end - 1);
#elif defined(WITH_DQ)
                OwnDQ dQ;  // loaded early: it comes from far
                load_dq(dQ, part_base + row0 * PART_LD, first);
#else
                if (MASKED && key0 >= visible_keys(int(row0 + BLOCK_N) - 1)) {
                    continue;  // no row of the tile sees a key of this subgroup; the loop's barriers are still met
                }
#endif

                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    Weights S, dP;
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        S.at[r] = MatC(0.0);
                        dP.at[r] = MatC(0.0);
                    }
                    product(S, K_, n * MAT_N, exponents.x);
                    product(dP, V_, BLOCK_N + n * MAT_N, exponents.y);
                    vec2 stat[COL_RUN];
                    int visible[COL_RUN];
#ifdef FEATURES
                    int from[COL_RUN];
#endif
                    [[unroll]] for (uint e = 0; e < COL_RUN; e++) {
                        stat[e] = stats[n * MAT_N + column[e]];
                        const uint row = row0 + n * MAT_N + column[e];
#ifdef FEATURES
                        from[e] = visible_from(int(row));
                        visible[e] = row < p.seq_q ? visible_keys(int(row)) : 0;
#else
                        visible[e] = MASKED && row < p.seq_q ? visible_keys(int(row)) - key0 : 0;
#endif
                    }
                    Left P_, dX_;
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        MatC weight, dX;
                        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
#ifdef FEATURES
                            const uint col = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(place[i / ROW_RUN * ROW_RUN]) / MAT_N;
                            const uint row = n * MAT_N + column[i % COL_RUN];
                            const int key = int(col0 + col);
                            const bool seen = unhidden[r * ROWS + i / ROW_RUN] && (!cut || key >= from[i % COL_RUN] && key < visible[i % COL_RUN]);
                            const Weighed x = weigh(block, S.at[r][i], dP.at[r][i], stat[i % COL_RUN], int(row0 + row), key, seen, is_kept(row, col));
                            weight[i] = x.P;
                            dX[i] = x.dX;
#else
                            weight[i] = exp2(fma(S.at[r][i], p.scale_log2, -stat[i % COL_RUN].x));
                            dX[i] = weight[i] * (dP.at[r][i] - stat[i % COL_RUN].y);
                            if (MASKED) {  // K and V of hidden keys may be NaN
                                const bool seen = int(r * MAT_M + uint(place[i]) / MAT_N) < visible[i % COL_RUN];
                                weight[i] = seen ? weight[i] : 0.0;
                                dX[i] = seen ? dX[i] : 0.0;
                            }
#endif
                        }
                        set_left(P_, r, weight, weight_amax());
                        set_left(dX_, r, dX, row_amax(dX));
#ifdef WITH_DQ
                        coopMatStore(dX_.at[r], exchange, (gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M) * EXCHANGE_LD + n * (MAT_N / 8),
                                     EXCHANGE_LD, ROW_MAJOR);
#endif
                    }
                    accumulate(dV_, P_, BLOCK_N + n * MAT_N, exponents.y);
                    accumulate(dK_, dX_, n * MAT_N, exponents.x);
                }
#ifdef WITH_DQ

                barrier();  // exchange written before it is read, and tile read before put_dq_tile
                add_dq(dQ);
                if (ONE_BLOCK) {
                    put_dq_tile(dQ, dq_base + row0 * p.dq_stride_s, last_row - row0);
                } else {
                    store_dq(dQ, part_base + row0 * PART_LD);
                }
#endif
            }
        }
    }

#ifdef FEATURES
    const float DK_SCALE = args.plain.scale_log2 * LN_2;
    const float DV_SCALE = keep_scale();
#else
#define DK_SCALE p.scale_log2 * LN_2
#define DV_SCALE 1.0
#endif
    store_gradient(dK_, DK_SCALE, false, HEAD_AT(dx, batch, kv_head) + col0 * p.dx_stride_s, p.dx_stride_s, last_key);
    store_gradient(dV_, DV_SCALE, true, HEAD_AT(dv, batch, kv_head) + col0 * p.dv_stride_s, p.dv_stride_s, last_key);
}
