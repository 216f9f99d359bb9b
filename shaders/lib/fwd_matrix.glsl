// fwd_matrix: fused attention forward on cooperative matrices, for every path
// that has them. The paths differ in how they reach the rows of a matrix
// (lib/rows.glsl).
//
// A workgroup owns BLOCK_M rows of one head, a subgroup ROW_TILES * MAT_M of
// them. Q, S, P and O stay in registers; tiles of BLOCK_N keys pass through
// shared memory:
//
//     for each key tile:  S = Q K^T;  m' = max(m, rowmax S)
//                         P = exp2(S * scale - m');  l, O *= exp2(m - m')
//                         l += rowsum P;  O += P V
//
// after Algorithm 1 of Dao, FlashAttention-2 (arXiv:2307.08691), in base 2.
//
// Rescaling is lazy, as in FlashAttention-4 (arXiv:2603.05451): O and l stay
// relative to an old maximum m until a row grows by more than 2^8. P is then
// at most 256, and the final division cancels the difference. With STEADY, for
// bfloat16, it is lazier still (lib/steady.glsl).
//
// With F32X2 tensors are float32, and a product is several (lib/fwd_f32x2.glsl).
//
// forward() is one function, and files with parts of it are included where they
// belong: as functions of arrays of matrices they would cost registers, and on
// NVIDIA spill them (550 bytes).

#include "softmax.glsl"
#include "mask.glsl"
#include "order.glsl"
#include "split_kv.glsl"
#ifdef F32X2
#include "tile_f32x2.glsl"
#else
#include "tile.glsl"
#endif
#include "scores.glsl"
#include "key_range.glsl"
#include "store_float.glsl"
#define LOGITS_IF_NEEDED
#include "features.glsl"
#include "feature_tile.glsl"

const float RESCALE_THRESHOLD = 8.0;  // of lib/fwd_rescale.glsl

#ifdef F32X2
#include "fwd_f32x2.glsl"
#else
const float HEADROOM = 0.0;

// Where lib/fwd_f32x2.glsl differs: element_index(), what makes S base-2 logits, of a tile
// and of a row; what O and l are relative to once `top` is a row's maximum; m, l and what
// O is multiplied by in the end.
#define PLACE place
#define TILE_SCALE args.plain.scale_log2
#define ROW_SCALE(r, i) p.scale_log2
#define BASE_OF(top) top
#define PLAIN_M(m) m
#define PLAIN_L(l) l
#define OUT_SCALE(l) inverse_sum(l)
#endif

#if defined(ELEM_BF16) && !defined(FEATURES)  // a key mask or a bias may hide the first scores of a row
#define STEADY
#include "steady.glsl"
#endif

// FETCH_NEXT loads the copies of the key tile at k and v; rows beyond `last` are row `last`. A macro, as
// arrays sized by specialization constants cannot be arguments.
#define FETCH_NEXT(k, v, last)                          \
    [[unroll]] for (uint i = 0; i < COPIES; i++) {      \
        next_k[i] = fetch_k(k, i, last);                \
        next_v[i] = fetch_v(v, i, last);                \
    }

void forward() {
    const Work work = next_work();
    const uint head = work.head;
    const uint batch = work.batch;
    const uint kv_head = work.kv_head;
    const uint block_row = work.block * BLOCK_M;
    const uint subgroup_row = gl_SubgroupID * SUBGROUP_ROWS;  // within the block
    const int row0 = int(block_row + subgroup_row);           // first row of this subgroup

#ifdef FEATURES
    const Block block = enter_block(batch, head, block_row, BLOCK_M);
    if (!block.exists) {
        return;
    }
#ifndef F32X2
    const MatC place = element_index();
#endif
#endif
    const int first_key = share_first(work.split, block_keys(block_row));
    const int end_key = share_end(work.split, block_keys(block_row));
    const int full_end = SPLIT_KV ? min(full_keys(block_row), end_key) : full_keys(block_row);
    const int subgroup_end = visible_keys(row0 + int(SUBGROUP_ROWS) - 1);
    const uint last = last_key();
    uint k_at = HEAD_AT(k, batch, kv_head) + first_key * p.k_stride_s;
    uint v_at = HEAD_AT(v, batch, kv_head) + first_key * p.v_stride_s;
    COPY next_k[COPIES];
    COPY next_v[COPIES];
    if (PREFETCH && KEYS_FIRST) {
        FETCH_NEXT(k_at, v_at, last - first_key)
    }

#ifdef F32X2
#include "fwd_f32x2_q.glsl"
#else
    MatA Q_[ROW_TILES * DIM_TILES];  // (SUBGROUP_ROWS, head_dim)
    const uint q_base = HEAD_AT(q, batch, head) + block_row * p.q_stride_s;
    [[unroll]] for (uint stage = 0; stage < STAGES; stage++) {
        stage_q(q_base, block_row, stage * STAGE_TILES);
        [[unroll]] for (uint e = 0; e < STAGE_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * STAGE_TILES + e < DIM_TILES) {
                    coopMatLoad(Q_[r * DIM_TILES + stage * STAGE_TILES + e], tile, stage_at(subgroup_row + r * MAT_M, e), STAGE_LD,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
    }

    MatC O_[ROW_TILES * VALUE_TILES];  // (SUBGROUP_ROWS, value_dim)
    float m[ROW_TILES * ROWS];         // running maximum, base 2
    float l[ROW_TILES * ROWS];         // this invocation's share of the row's sum
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            m[r * ROWS + i] = MAX_INIT;
            l[r * ROWS + i] = 0.0;
        }
        [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
            O_[r * VALUE_TILES + d] = MatC(0.0);
        }
    }
#endif

    if (PREFETCH && !KEYS_FIRST) {
        FETCH_NEXT(k_at, v_at, last - first_key)
    }

    // Two phases, unrolled: tiles without a mask, then the rest. A test inside
    // one loop would cost a copy of S on the way that skips the mask (48 of 830
    // instructions on NVIDIA). Without SPLIT_LOOP there is less to compile.
    int col0 = first_key;
#ifdef STEADY
#include "fwd_steady_begin.glsl"
#else
#define phase0_end full_end
#endif
    [[unroll]] for (uint phase = SPLIT_LOOP ? 0 : 1; phase < 2; phase++) {
        const bool MASKED = phase == 1;
        // Unrolled, this loop only grows: five times the code, ten times the compile time.
        [[dont_unroll]] for (; col0 < (MASKED ? end_key : phase0_end); col0 += int(BLOCK_N)) {
#include "fwd_next_tile.glsl"
#ifdef FEATURES
            if (MASKED && no_row_sees(row0, col0)) {
                continue;  // the loop's barriers are still met
            }
#else
            if (MASKED && CAUSAL && col0 >= subgroup_end) {
                continue;  // no row of this subgroup sees the tile; the loop's barriers are still met
            }
#endif

#ifdef F32X2
#include "fwd_f32x2_scores.glsl"
#else
            Scores S;
            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r * COL_TILES + n] = MatC(0.0);
                }
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    fence(d);
                    MatB kt;  // K^T: a row-major tile of K read by columns
                    coopMatLoad(kt, tile, n * MAT_N * LD + d * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        S.at[r * COL_TILES + n] = coopMatMulAdd(Q_[r * DIM_TILES + d], kt, S.at[r * COL_TILES + n]);
                    }
                }
            }
#ifdef FEATURES
            const bool cut = MASKED && !all_rows_see(row0, col0);
#endif
#endif
#ifdef FEATURES
            if (LOGITS || KEY_MASK || cut) {
                score_tile(S, block, PLACE, TILE_SCALE, row0, col0, cut);
            }
#else
            if (MASKED && col0 + int(BLOCK_N) > visible_keys(row0)) {  // not if all rows see the tile
                hide_keys(S, row0, col0);
            }
#endif

#ifdef STEADY
            if (MASKED)
#endif
            {
#include "fwd_rescale.glsl"
            }

#ifdef F32X2
#include "fwd_f32x2_values.glsl"
#else
            // The weights of a column of matrices right before their products, which
            // overlap with the next column's exponentials.
            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                MatA P[ROW_TILES];  // (SUBGROUP_ROWS, MAT_N)
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    MatC weight;
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        weight[i] = exp2(fma(S.at[r * COL_TILES + n][i], p.scale_log2, -m[r * ROWS + i / ROW_RUN]));
                        l[r * ROWS + i / ROW_RUN] += weight[i];
#ifdef FEATURES
                        const uint at = uint(place[i]);
                        weight[i] = is_kept(subgroup_row + r * MAT_M + at / MAT_N, n * MAT_N + at % MAT_N) ? weight[i] : 0.0;
#endif
                    }
                    P[r] = to_left(weight, true);
                }
                [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                    fence(d);
                    MatB v;
                    coopMatLoad(v, tile, (BLOCK_N + n * MAT_N) * LD + d * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        O_[r * VALUE_TILES + d] = coopMatMulAdd(P[r], v, O_[r * VALUE_TILES + d]);
                    }
                }
            }
#endif
        }
#ifdef STEADY
#include "fwd_steady_end.glsl"
#endif
    }

#include "fwd_finish.glsl"
}
