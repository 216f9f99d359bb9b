// bwd_dq_matrix: the gradient of Q on cooperative matrices, for every path that has them.
//
// A workgroup owns BLOCK_M rows of one head, a subgroup ROW_TILES * MAT_M of them. Q,
// dO and dQ stay in registers; tiles of BLOCK_N keys pass through shared memory:
//
//     for each tile of keys:  S  = Q K^T;   P  = exp2(S * scale - lse2)
//                             dP = dO V^T;  dX = P * (dP - Delta)
//                             dQ += dX K
//
// With FEATURES, dX is what lib/feature_gradients.glsl makes of it, and the last axis of V
// and dO is value_dim long. All tiles are in one loop; each subgroup looks whether the
// window cuts its part of a tile.
//
// With F32X2, tensors are float32 and the arithmetic is lib/tile_bwd_f32x2.glsl's.
//
// With STORE, P and dX go to memory, too, as lib/pages.glsl says; the dispatch is (heads of a
// group, blocks, groups).

#include "softmax.glsl"
#include "mask.glsl"
#ifdef F32X2
#include "tile_bwd_f32x2.glsl"
#else
#include "tile_bwd.glsl"
#endif
#ifdef STORE
#include "no_row.glsl"
#include "two.glsl"
#include "pages.glsl"
#include "store_weights.glsl"
#else
#define GROUP_HEADS gl_NumWorkGroups.x
#define BATCH_HEADS num_heads()
#define SAME_KV p.heads_per_kv
#define LAST_FIRST CAUSAL  // the last rows see most keys
#include "order.glsl"
#endif
#define TILE_ROWS BLOCK_M
#define TILE_KEYS BLOCK_N
#include "features.glsl"
#include "dropout.glsl"
#include "feature_keys.glsl"
#include "feature_gradients.glsl"

void backward_dq() {
#ifdef STORE
    const uint number = gl_WorkGroupID.z * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (number >= p.heads) {
        return;
    }
    const uint head_number = p.first_head + number / p.members * p.heads_per_kv + number % p.members;
    const uint batch = head_number / num_heads();
    const uint head = head_number % num_heads();
    const uint block_number = CAUSAL ? gl_NumWorkGroups.y - 1 - gl_WorkGroupID.y : gl_WorkGroupID.y;
    const uint block_row = block_number * BLOCK_M;
    const uint kv_head = head / p.heads_per_kv;
#else
    const Work work = next_work();
    const uint head = work.head;
    const uint batch = work.batch;
    const uint kv_head = work.kv_head;
    const uint block_row = work.block * BLOCK_M;
#endif
    const int row0 = int(block_row + gl_SubgroupID * SUBGROUP_ROWS);  // first row of this subgroup
#ifdef FEATURES
    const Block block = enter_block(batch, head, block_row, BLOCK_M);
    if (!block.exists) {
        return;
    }
#endif
    const uint last_row = p.seq_q - 1 - block_row;                    // within the block

    Owned Q_, dO_;
    load_owned(Q_, TENSOR_Q, HEAD_AT(q, batch, head) + block_row * p.q_stride_s, p.q_stride_s, last_row);
    load_owned(dO_, TENSOR_DO, HEAD_AT(do, batch, head) + block_row * p.do_stride_s, p.do_stride_s, last_row);
    const MatC place = element_index();
    float lse2[ROW_TILES * ROWS];
    float delta[ROW_TILES * ROWS];
    Gradient dQ_;
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(place[i * ROW_RUN]) / MAT_N;
            const vec2 stat = rows[rows_at(batch, head) + block_row + min(row, last_row)];
#ifdef STORE
            lse2[r * ROWS + i] = row <= last_row ? stat.x : NO_ROW;
#else
            lse2[r * ROWS + i] = stat.x;
#endif
            delta[r * ROWS + i] = stat.y;
        }
        [[unroll]] for (uint d = 0; d < WIDE_TILES; d++) {
            dQ_.at[r * WIDE_TILES + d] = MatC(0.0);
        }
    }

    // Keys that every row of the block sees, in whole tiles; that some row sees; that
    // some row of the subgroup sees.
    const int full_end = max(visible_keys(int(block_row)), 0) / int(BLOCK_N) * int(BLOCK_N);
    const int end = visible_keys(int(block_row + min(BLOCK_M - 1, last_row)));
    const int subgroup_end = visible_keys(row0 + int(SUBGROUP_ROWS) - 1);
    const int last_key = max(end, 1) - 1;  // keys beyond it may be NaN
    const uint k_base = HEAD_AT(k, batch, kv_head);
    const uint v_base = HEAD_AT(v, batch, kv_head);
    COPY next_k[COPIES];
    COPY next_v[COPIES];
    if (PREFETCH) {
        [[unroll]] for (uint i = 0; i < COPIES; i++) {
            next_k[i] = fetch(TENSOR_K, k_base, p.k_stride_s, i, last_key);
            next_v[i] = fetch(TENSOR_V, v_base, p.v_stride_s, i, last_key);
        }
    }
    int col0 = 0;
#ifdef STORE
    // All keys of the pages, also those that no row sees.
#ifdef FEATURES
    const uint first_page = number * head_pages() + block.page;
    const int stored_end = block.pages * int(BLOCK_M);
    const int first_seen = visible_from(int(block_row));  // keys before it may be NaN
#else
    const uint first_page = number * head_pages() + pages_before(block_number);
    const int stored_end = pages_of(block_number) * int(BLOCK_M);
#endif
#else
#define stored_end end
#endif
#ifdef FEATURES
    {
        [[dont_unroll]] for (; col0 < stored_end; col0 += int(BLOCK_N)) {
#else
    // Two phases, unrolled: tiles without a mask, then the rest.
    [[unroll]] for (uint phase = PEEL_MASK ? 0 : 1; phase < 2; phase++) {
        const bool MASKED = phase == 1;
        [[dont_unroll]] for (; col0 < (MASKED ? stored_end : full_end); col0 += int(BLOCK_N)) {
#endif
            if (!PREFETCH) {
#ifdef STORE
                const int key = min(col0, last_key);
#else
#define key col0
#endif
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    next_k[i] = fetch(TENSOR_K, k_base + key * p.k_stride_s, p.k_stride_s, i, last_key - key);
                    next_v[i] = fetch(TENSOR_V, v_base + key * p.v_stride_s, p.v_stride_s, i, last_key - key);
                }
#undef key
            }
#ifdef FEATURES
#ifdef STORE
            if (hides_values() || WINDOW_LEFT && col0 < first_seen) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    const bool visible = all(bvec2(shows(block, col0, i), col0 + int(copy_row(i)) >= first_seen));
#else
            if (hides_values()) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    const bool visible = shows(block, col0, i);
#endif
                    next_k[i] = keep_if(visible, next_k[i]);
                    next_v[i] = keep_if(visible, next_v[i]);
                }
            }
#endif
            SHARE_AMAX(next_k, next_v)
            barrier();  // the tile before is read; with F32X2, tile_amax written before it is read
#ifdef F32X2
            const uvec2 exponents = tile_exponents();
#endif
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                put(i, next_k[i], next_v[i], exponents);
                put_shown(block, col0, i);
            }
            fill_kept(block, block_row, col0);
            barrier();  // tile written before it is read; tile_amax is read
            if (PREFETCH) {
                const int key = min(col0 + int(BLOCK_N), last_key);  // past the end the last key again
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    next_k[i] = fetch(TENSOR_K, k_base + key * p.k_stride_s, p.k_stride_s, i, last_key - key);
                    next_v[i] = fetch(TENSOR_V, v_base + key * p.v_stride_s, p.v_stride_s, i, last_key - key);
                }
            }
#ifdef STORE
            const uint weights_page = p.pages_offset + (first_page + col0 / BLOCK_M) * 2 * PAGE8;
            const uint page_col = col0 % BLOCK_M;
#endif
#ifdef FEATURES
            if (no_row_sees(row0, col0)) {
#ifdef STORE
                put_zeros(weights_page, page_col);
                put_zeros(weights_page + PAGE8, page_col);
#endif
                continue;  // as below
            }
            const bool cut = !all_rows_see(row0, col0);
#elif defined(STORE)
            if (MASKED && col0 >= subgroup_end) {
                put_zeros(weights_page, page_col);
                put_zeros(weights_page + PAGE8, page_col);
                continue;
            }
#else
            if (MASKED && CAUSAL && col0 >= subgroup_end) {
                continue;  // no row of this subgroup sees the tile; the loop's barriers are still met
            }
#endif
#ifdef STORE
            Words P_words, dX_words;
#endif

            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                Weights S, dP;
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r] = MatC(0.0);
                    dP.at[r] = MatC(0.0);
                }
                product(S, Q_, n * MAT_N, exponents.x);
                product(dP, dO_, BLOCK_N + n * MAT_N, exponents.y);
#ifdef STORE
                Left dX_;
                Left P_;
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    MatC dX;
                    MatC weight;
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        const uint row = r * ROWS + i / ROW_RUN;
#ifdef FEATURES
                        const uint own_row = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(place[i / ROW_RUN * ROW_RUN]) / MAT_N;
                        const int seen_row = int(block_row + own_row);
                        const uint col = n * MAT_N + uint(place[i]) % MAT_N;
                        const int key = col0 + int(col);
                        const bool seen = (!cut || in_window(seen_row, key)) && (!KEY_MASK || shown[col] != 0);
                        const Weighed x = weigh(block, S.at[r][i], dP.at[r][i], vec2(lse2[row], delta[row]), seen_row, key, seen, is_kept(own_row, col));
                        weight[i] = x.P;
                        dX[i] = x.dX;
#else
                        weight[i] = exp2(fma(S.at[r][i], p.scale_log2, -lse2[row]));
                        dX[i] = weight[i] * (dP.at[r][i] - delta[row]);
                        if (MASKED) {
                            const uint at = uint(place[i]);
                            const bool seen = col0 + int(n * MAT_N + at % MAT_N) < visible_keys(row0 + int(r * MAT_M + at / MAT_N));
                            weight[i] = seen ? weight[i] : 0.0;
                            dX[i] = seen ? dX[i] : 0.0;
                        }
#endif
                    }
                    set_left(dX_, r, dX, row_amax(dX));
                    set_left(P_, r, weight, weight_amax());
                    if (PACKED) {
                        put_packed(P_words, r, n, P_.at[r], weights_page, page_col);
                        put_packed(dX_words, r, n, dX_.at[r], weights_page + PAGE8, page_col);
                    }
                }
                if (!PACKED) {
                    put_matrices(P_, weights_page, page_col, n);
                    put_matrices(dX_, weights_page + PAGE8, page_col, n);
                }
#else
                Left dX_;
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    MatC dX;
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        const uint row = r * ROWS + i / ROW_RUN;
#ifdef FEATURES
                        const uint own_row = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(place[i / ROW_RUN * ROW_RUN]) / MAT_N;
                        const int seen_row = int(block_row + own_row);
                        const uint col = n * MAT_N + uint(place[i]) % MAT_N;
                        const int key = col0 + int(col);
                        const bool seen = (!cut || in_window(seen_row, key)) && (!KEY_MASK || shown[col] != 0);
                        dX[i] = weigh(block, S.at[r][i], dP.at[r][i], vec2(lse2[row], delta[row]), seen_row, key, seen, is_kept(own_row, col)).dX;
#else
                        dX[i] = exp2(fma(S.at[r][i], p.scale_log2, -lse2[row])) * (dP.at[r][i] - delta[row]);
                        if (MASKED) {
                            const uint at = uint(place[i]);
                            const bool seen = col0 + int(n * MAT_N + at % MAT_N) < visible_keys(row0 + int(r * MAT_M + at / MAT_N));
                            dX[i] = seen ? dX[i] : 0.0;
                        }
#endif
                    }
                    set_left(dX_, r, dX, row_amax(dX));
                }
#endif
                accumulate(dQ_, dX_, n * MAT_N, exponents.x);
            }
        }
    }

#ifdef FEATURES
    const float DQ_SCALE = args.plain.scale_log2 * LN_2;
#else
#define DQ_SCALE p.scale_log2 * LN_2
#endif
    store_gradient(dQ_, DQ_SCALE, false, HEAD_AT(dx, batch, head) + block_row * p.dx_stride_s, p.dx_stride_s, last_row);
}
