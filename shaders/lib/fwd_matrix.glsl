// fwd_matrix: fused attention forward on cooperative matrices, for every path that has them. The
// paths differ in how they reach the rows of a matrix (lib/rows.glsl).
//
// A workgroup owns BLOCK_M rows of one head, a subgroup ROW_TILES * MAT_M of them. Q, S, P and O
// stay in registers; tiles of BLOCK_N keys pass through shared memory:
//
//     for each key tile:  S = Q K^T;  m' = max(m, rowmax S)
//                         P = exp2(S * fold - m');  l, O *= exp2(m - m')
//                         l += rowsum P;  O += P V
//
// after Algorithm 1 of Dao, FlashAttention-2 (arXiv:2307.08691), in base 2.
//
// Rescaling is lazy, as in FlashAttention-4 (arXiv:2603.05451): O and l stay relative to an old
// maximum m until a row grows by more than 2^8. P is then at most 256, and the final division
// cancels the difference. With STEADY, for bfloat16, it is lazier still (lib/steady.glsl).
//
// What depends on the format of the tensors is in one of three files, which have the same names:
//
//     lib/fwd_plain.glsl   16 bits
//     lib/fwd_quant.glsl   8 bits for Q and K (QUANT)
//     lib/fwd_f32x2.glsl   float32, where a product is several products (F32X2)
//
// With FEATURES, lib/features.glsl changes scores, weights and sums; lib/fwd_features.glsl says what is left
// without it.
//
// forward() is one function, and files with parts of it are included where they belong: as
// functions of arrays of matrices they would cost registers, and on NVIDIA spill them (550 bytes).

#include "softmax.glsl"
#include "mask.glsl"
#include "order.glsl"
#include "split_kv.glsl"
#if defined(F32X2)
#include "fwd_f32x2.glsl"
#elif defined(QUANT)
#include "fwd_quant.glsl"
#else
#include "fwd_plain.glsl"
#endif
#include "scores.glsl"
#include "key_range.glsl"
#include "store_float.glsl"
#include "fwd_features.glsl"
#include "feature_tile.glsl"

#if defined(ELEM_BF16) && !defined(FEATURES)  // a key mask or a bias may hide the first scores of a row
#define STEADY
#include "steady.glsl"
#endif

// FETCH_NEXT loads the copies of the key tile at k and v; rows beyond `last` are row `last`. A macro, as
// arrays sized by specialization constants cannot be arguments; the other macros are for arrays of matrices.
#define FETCH_NEXT(k, v, last)                      \
    [[unroll]] for (uint i = 0; i < COPIES; i++) {  \
        next_k[i] = fetch_k(k, i, last);            \
        next_v[i] = fetch_v(v, i, last);            \
    }

// SUM_COLUMN defines `MatS sum[ROW_TILES]`, the products of Q and column n of the tile's matrices of K^T.
#define SUM_COLUMN(n)                                                             \
    MatS sum[ROW_TILES];                                                          \
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {                             \
        sum[r] = MatS(NO_SUM);                                                    \
    }                                                                             \
    [[unroll]] for (uint d = 0; d < K_TILES; d++) {                               \
        fence(d);                                                                 \
        MatK kt; /* a row-major tile of K read by columns */                      \
        coopMatLoad(kt, tile, n * MAT_N * K_LD + d * K_CELL, K_LD, COLUMN_MAJOR); \
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {                         \
            sum[r] = coopMatMulAdd(Q_[r * K_TILES + d], kt, sum[r]);              \
        }                                                                         \
    }

// START_ROWS makes rows and O_ what they are before the first key.
#define START_ROWS                                                  \
    [[unroll]] for (uint i = 0; i < ROW_TILES * ROWS; i++) {        \
        rows[i] = new_row();                                        \
    }                                                               \
    [[unroll]] for (uint i = 0; i < ROW_TILES * VALUE_TILES; i++) { \
        O_[i] = MatC(0.0);                                          \
    }

// SUM_O defines `total`, which is finite only if all of O_ that this invocation has is.
#define SUM_O(total)                                                    \
    float total = 0.0;                                                  \
    [[unroll]] for (uint i = 0; i < ROW_TILES * VALUE_TILES; i++) {     \
        float part = 0.0;                                               \
        [[unroll]] for (uint e = 0; e < LENGTH; e++) {                  \
            part += O_[i][e];                                           \
        }                                                               \
        total += part;                                                  \
    }

void forward() {
    const Work work = next_work();
    const uint head = work.head;
    const uint batch = work.batch;
    const uint block_row = work.block * BLOCK_M;
    const uint subgroup_row = gl_SubgroupID * SUBGROUP_ROWS;  // within the block
    const int row0 = int(block_row + subgroup_row);           // first row of this subgroup

    const Block block = enter_block(batch, head, block_row, BLOCK_M);
    if (!block.exists) {
        return;
    }
    const int first_key = split_first(work.split, block_keys(block_row));
    const int end_key = split_end(work.split, block_keys(block_row));
    const int full_end = SPLIT_KV ? min(full_keys(block_row), end_key) : full_keys(block_row);
    const uint last = last_key();
    const uint q_at = HEAD_AT(q, batch, head);
    const uint k_base = HEAD_AT(k, batch, work.kv_head);
    uint k_at = k_base + first_key * p.k_stride_s;
    uint v_at = HEAD_AT(v, batch, work.kv_head) + first_key * p.v_stride_s;
    COPY next_k[COPIES];
    COPY next_v[COPIES];
    if (PREFETCH && KEYS_FIRST) {
        FETCH_NEXT(k_at, v_at, last - first_key)
    }

#if defined(FEATURES) || defined(F32X2) || defined(QUANT)
    const MatC place = element_index();  // stays in registers
#endif
#if defined(F32X2)
#include "fwd_f32x2_q.glsl"
#elif defined(QUANT)
    MatQ Q_[ROW_TILES * K_TILES];     // (SUBGROUP_ROWS, head_dim)
    float q_scale[ROW_TILES * ROWS];
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        const uint first = q_at / ROW_BYTES + uint(row0) + r * MAT_M;
        [[unroll]] for (uint d = 0; d < K_TILES; d++) {
            coopMatLoad(Q_[r * K_TILES + d], q16, first * K_ROW + d * K_CELL, K_ROW, ROW_MAJOR);
        }
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            q_scale[r * ROWS + i] = q_row(q_at, uint(row0) + r * MAT_M + uint(place[i * ROW_RUN]) / MAT_N).x;
        }
    }
#else
    MatQ Q_[ROW_TILES * DIM_TILES];  // (SUBGROUP_ROWS, head_dim)
    [[unroll]] for (uint stage = 0; stage < STAGES; stage++) {
        stage_q(q_at + block_row * p.q_stride_s, block_row, stage * STAGE_TILES);
        [[unroll]] for (uint e = 0; e < STAGE_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * STAGE_TILES + e < DIM_TILES) {
                    coopMatLoad(Q_[r * DIM_TILES + stage * STAGE_TILES + e], tile, stage_at(subgroup_row + r * MAT_M, e), STAGE_LD,
                                ROW_MAJOR);
                }
            }
        }
    }
#endif

    RowState rows[ROW_TILES * ROWS];
    MatC O_[ROW_TILES * VALUE_TILES];  // (SUBGROUP_ROWS, value_dim)
    START_ROWS

    if (PREFETCH && !KEYS_FIRST) {
        FETCH_NEXT(k_at, v_at, last - first_key)
    }

    // Two phases, unrolled: tiles without a mask, then the rest. A test inside
    // one loop would cost a copy of S on the way that skips the mask (48 of 830
    // instructions on NVIDIA). Without PEEL_MASK there is less to compile.
    int col0 = first_key;
#ifdef STEADY
    // The maxima of each row's first MAT_N scores. The tile stays where it is: the loop copies it once more.
    const int phase0_end = steady_end(first_key, full_end);
    if (PEEL_MASK && col0 < phase0_end) {
        if (!PREFETCH) {
            FETCH_NEXT(k_at, v_at, BLOCK_N)
        }
        barrier();  // Q is read
        [[unroll]] for (uint i = 0; i < COPIES; i++) {
            put_kv(i, next_k[i], next_v[i], uvec2(0));
        }
        barrier();  // tile written before it is read
        SUM_COLUMN(0)
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            const MatC top = row_maxima(scores_of(sum[r]));
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                rows[r * ROWS + i].m = max(MAX_INIT, top[i] * FOLD(r * ROWS + i));
            }
        }
    }
#else
    const int phase0_end = full_end;
#endif
    [[unroll]] for (uint phase = PEEL_MASK ? 0 : 1; phase < 2; phase++) {
        const bool MASKED = phase == 1;
        // Unrolled, this loop only grows: five times the code, ten times the compile time.
        [[dont_unroll]] for (; col0 < (MASKED ? end_key : phase0_end); col0 += int(BLOCK_N)) {
            // The key tile goes to shared memory, and with PREFETCH the one after it into registers.
            if (!PREFETCH) {
                FETCH_NEXT(k_at, v_at, MASKED ? last - col0 : BLOCK_N)
            }
            if (hides_values()) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    const bool visible = shows(block, col0, i);
                    if (EXPONENTS) {
                        next_k[i] = keep_if(visible, next_k[i]);  // keys that no row sees have no say in the exponents
                    }
                    next_v[i] = keep_if(visible, next_v[i]);
                }
            }
            if (EXPONENTS) {
                float k_amax = 0.0;
                float v_amax = 0.0;
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    k_amax = max(k_amax, largest(next_k[i]));
                    v_amax = max(v_amax, largest(next_v[i]));
                }
                share_amax(k_amax, v_amax);
            }
            barrier();  // the tile before is read; tile_amax written before it is read
            const uvec2 exponents = tile_exponents();
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                put_kv(i, next_k[i], next_v[i], exponents);
                put_shown(block, col0, i);
            }
            fill_kept(block, block_row, col0);
            barrier();  // tile written before it is read; tile_amax is read
            k_at += BLOCK_N * p.k_stride_s;
            v_at += BLOCK_N * p.v_stride_s;
            if (PREFETCH) {
                // Past the end, the last key again: a wasted load is cheaper than a branch.
                const uint rest = uint(max(int(last) - col0 - int(BLOCK_N), 0));
                const uint back = col0 + BLOCK_N > last ? BLOCK_N : 0;
                FETCH_NEXT(k_at - back * p.k_stride_s, v_at - back * p.v_stride_s, rest)
            }
            if (MASKED && no_row_sees(row0, col0)) {
                continue;  // the loop's barriers are still met
            }

            Scores S;
#ifdef F32X2
#include "fwd_f32x2_scores.glsl"
#else
            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                SUM_COLUMN(n)
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r * COL_TILES + n] = scores_of(sum[r]);
                }
            }
#endif
            [[unroll]] for (uint i = 0; i < ROW_TILES * ROWS; i++) {
                rows[i].fold = FOLD(i);
                if (LOGITS) {
                    fold_row(S, i / ROWS, i % ROWS, rows[i].fold);
                    rows[i].fold = 1.0;
                }
            }
            const bool cut = MASKED && !all_rows_see(row0, col0);
            if (LOGITS || KEY_MASK || cut) {
                score_tile(S, block, place, row0, col0, cut);
            }

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
                        const uint row = r * ROWS + i / ROW_RUN;
                        weight[i] = weight_of(rows[row], S.at[r * COL_TILES + n][i]);
                        rows[row].l += weight[i];
                        weight[i] = kept_weight(weight[i], subgroup_row + r * MAT_M, n * MAT_N, place[i]);
                    }
                    P[r] = to_left(weight, true);
                }
                [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                    fence(d);
                    MatB v;
                    coopMatLoad(v, tile, V_AT + n * MAT_N * LD + d * (MAT_N / 8), LD, ROW_MAJOR);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        O_[r * VALUE_TILES + d] = coopMatMulAdd(P[r], v, O_[r * VALUE_TILES + d]);
                    }
                }
            }
#endif
        }
#ifdef STEADY
        // Where l or O has grown too large, all is as before the first key, for the next phase.
        if (!MASKED && first_key < phase0_end) {
            SUM_O(total)
            bool finite = is_finite(total);
            [[unroll]] for (uint i = 0; i < ROW_TILES * ROWS; i++) {
                finite = finite && is_steady_sum(rows[i].l);
            }
            if (any_of_workgroup(!finite)) {  // from the first key on, as if there were no such tiles
                k_at -= (col0 - first_key) * p.k_stride_s;
                v_at -= (col0 - first_key) * p.v_stride_s;
                col0 = first_key;
                START_ROWS
                FETCH_NEXT(k_at, v_at, last - first_key)
            }
        }
#endif
    }

    // O is divided by l, and O and LSE are written.
    const uint out_row = work.split * p.seq_q;  // where the rows of the head begin
    const uint o_base = HEAD_AT(o, batch, head) + (out_row + block_row) * p.o_stride_s;
    const uint lse_base = HEAD_AT(lse, batch, head) + (out_row + block_row) * p.lse_stride_s;
    const MatC index = element_index();
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC sum;
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            sum[i] = rows[r * ROWS + i].l;
        }
        sum = reduce(sum, true);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = subgroup_row + r * MAT_M + uint(index[i * ROW_RUN]) / MAT_N;  // within the block
            float m = rows[r * ROWS + i].m + m_shift(q_at, block_row + row);
            float l = sum[i] / P_UNIT;
            const float whole = finish_row(block, m, l);
            const float inverse = SPLIT_KV ? 1.0 : whole;  // attention_combine.comp divides
            if (WRITE_LSE && block_row + row < p.seq_q && speaks_for_row(index[i * ROW_RUN])) {
                put_lse(lse_base + row * p.lse_stride_s, m, l);
            }
            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                    O_[r * VALUE_TILES + d][e] *= inverse;
                }
            }
        }
    }
    if (SPLIT_KV || FLOAT_O) {
        [[unroll]] for (uint stage = 0; stage < FLOAT_STAGES; stage++) {
            barrier();  // the last key tile, or the columns before, are read
            [[unroll]] for (uint e = 0; e < FLOAT_TILES; e++) {
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    if (stage * FLOAT_TILES + e < VALUE_TILES) {
                        coopMatStore(O_[r * VALUE_TILES + stage * FLOAT_TILES + e], tile, float_at(subgroup_row + r * MAT_M, e), FLOAT_LD,
                                     ROW_MAJOR);
                    }
                }
            }
            store_floats(o_base, block_row, stage * FLOAT_TILES);
        }
        return;
    }
#ifdef STEADY
    SUM_O(total)
    if (subgroupAny(!is_finite(total))) {
        [[unroll]] for (uint i = 0; i < ROW_TILES * VALUE_TILES * LENGTH; i++) {
            O_[i / LENGTH][i % LENGTH] = short_nan(O_[i / LENGTH][i % LENGTH]);
        }
    }
#define to_result(x) short_to_left(x)
#else
#define to_result(x) to_left(x, false)
#endif
#ifndef F32X2
    [[unroll]] for (uint stage = 0; stage < VALUE_STAGES; stage++) {
        barrier();  // the last key tile, or the columns before, are read
        [[unroll]] for (uint e = 0; e < STAGE_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * STAGE_TILES + e < VALUE_TILES) {
                    coopMatStore(to_result(O_[r * VALUE_TILES + stage * STAGE_TILES + e]), tile,
                                 stage_at(subgroup_row + r * MAT_M, e), STAGE_LD, ROW_MAJOR);
                }
            }
        }
        store_o(o_base, block_row, stage * STAGE_TILES);
    }
#endif
}
