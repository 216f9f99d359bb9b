// fwd_matrix: fused attention forward on cooperative matrices, for every path that has them. The
// paths differ in how they reach the rows of a matrix (lib/rows.glsl).
//
// A workgroup owns BLOCK_M rows of one head, a subgroup ROW_TILES * MAT_M of them. Q, S, P and O
// stay in registers; tiles of BLOCK_N keys pass through shared memory:
//
//     for each key tile:  S = Q K^T;  m' = max(m, rowmax S)
//                         P = exp2(S * scale - m');  l, O *= exp2(m - m')
//                         l += rowsum P;  O += P V
//
// after Algorithm 1 of Dao, FlashAttention-2 (arXiv:2307.08691), in base 2.
//
// Rescaling is lazy, as in FlashAttention-4 (arXiv:2603.05451): O and l stay relative to an old
// maximum m until a row grows by more than 2^8. P is then at most 256, and the final division
// cancels the difference. With STEADY, for bfloat16, it is lazier still (lib/steady.glsl).
//
// With F32X2 tensors are float32, and a product is several (lib/fwd_f32x2.glsl). With QUANT Q and K are
// integers of 8 bits (lib/fwd_quant.glsl).
//
// forward() is one function, and files with parts of it are included where they belong: as
// functions of arrays of matrices they would cost registers, and on NVIDIA spill them (550 bytes).

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

#ifdef QUANT
#include "fwd_quant.glsl"
#else
// Where lib/fwd_f32x2.glsl differs: element_index(), what makes S base-2 logits, of a tile
// and of a row; what O and l are relative to once `row_max` is a row's maximum; m, l and what
// O is multiplied by in the end.
#define PLACE place
#define TILE_SCALE args.plain.scale_log2
#define ROW_SCALE(r, i) p.scale_log2
#define BASE_OF(row_max) row_max
#define PLAIN_M(m) m
#define PLAIN_L(l) l
#define OUT_SCALE(l) inverse_sum(l)
#define VALUES_AT(n) (BLOCK_N + n * MAT_N) * LD  // of column n of matrices of keys
#endif
#endif

#if defined(ELEM_BF16) && !defined(FEATURES)  // a key mask or a bias may hide the first scores of a row
#define STEADY
#include "steady.glsl"
#endif

// FETCH_NEXT loads the copies of the key tile at k and v; rows beyond `last` are row `last`. A macro, as
// arrays sized by specialization constants cannot be arguments.
#define FETCH_NEXT(k, v, last)                      \
    [[unroll]] for (uint i = 0; i < COPIES; i++) {  \
        next_k[i] = fetch_k(k, i, last);            \
        next_v[i] = fetch_v(v, i, last);            \
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
#endif
#if defined(FEATURES) && !defined(F32X2) || defined(QUANT)
    const MatC place = element_index();
#endif
    const int first_key = split_first(work.split, block_keys(block_row));
    const int end_key = split_end(work.split, block_keys(block_row));
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
#ifdef QUANT
    MatA8 Q_[ROW_TILES * K_TILES];     // (SUBGROUP_ROWS, head_dim)
    float q_scale[ROW_TILES * ROWS];
    const uint q_row0 = HEAD_AT(q, batch, head) / ROW_BYTES + uint(row0);
    const uint k_row0 = HEAD_AT(k, batch, kv_head) / ROW_BYTES;
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint d = 0; d < K_TILES; d++) {
            coopMatLoad(Q_[r * K_TILES + d], q16, (q_row0 + r * MAT_M) * K_ROW + d * K_CELL, K_ROW, ROW_MAJOR);
        }
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = r * MAT_M + uint(place[i * ROW_RUN]) / MAT_N;
            q_scale[r * ROWS + i] = uint(row0) + row < p.seq_q ? q_rows[q_row0 + row].x : 0.0;  // the others may be NaN
        }
    }
#else
    MatA Q_[ROW_TILES * DIM_TILES];  // (SUBGROUP_ROWS, head_dim)
    const uint q_base = HEAD_AT(q, batch, head) + block_row * p.q_stride_s;
    [[unroll]] for (uint stage = 0; stage < STAGES; stage++) {
        stage_q(q_base, block_row, stage * STAGE_TILES);
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

    MatC O_[ROW_TILES * VALUE_TILES];  // (SUBGROUP_ROWS, value_dim)
    float m[ROW_TILES * ROWS];  // running maximum, base 2
    float l[ROW_TILES * ROWS];  // this invocation's part of the row's sum
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
            put_kv(i, next_k[i], next_v[i], 1.0, 1.0);
        }
        barrier();  // tile written before it is read
#ifdef QUANT
        SUM_COLUMN(0)
        FOLD_TILE(first_key)
#endif
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
#ifdef QUANT
            const MatC first = scores_of(sum[r]);
#else
            MatC first = MatC(0.0);
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                fence(d);
                MatB kt;
                coopMatLoad(kt, tile, d * (MAT_N / 8), LD, COLUMN_MAJOR);
                first = coopMatMulAdd(Q_[r * DIM_TILES + d], kt, first);
            }
#endif
            const MatC top = row_maxima(first);
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                m[r * ROWS + i] = max(MAX_INIT, top[i] * ROW_SCALE(r, i));
            }
        }
    }
#else
#define phase0_end full_end
#endif
    [[unroll]] for (uint phase = PEEL_MASK ? 0 : 1; phase < 2; phase++) {
        const bool MASKED = phase == 1;
        // Unrolled, this loop only grows: five times the code, ten times the compile time.
        [[dont_unroll]] for (; col0 < (MASKED ? end_key : phase0_end); col0 += int(BLOCK_N)) {
            // The key tile goes to shared memory, and with PREFETCH the one after it into registers.
            if (!PREFETCH) {
                FETCH_NEXT(k_at, v_at, MASKED ? last - col0 : BLOCK_N)
            }
#ifdef F32X2
            float k_amax = 0.0;
            float v_amax = 0.0;
#ifdef FEATURES
            if (hides_values()) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    const bool visible = shows(block, col0, i);
                    next_k[i] = keep_if(visible, next_k[i]);  // keys that no row sees have no say in the exponents
                    next_v[i] = keep_if(visible, next_v[i]);
                }
            }
#endif
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                k_amax = max(k_amax, largest(next_k[i]));
                v_amax = max(v_amax, largest(next_v[i]));
            }
            share_amax(k_amax, v_amax);
#elif defined(FEATURES)
            if (hides_values()) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    next_v[i] = keep_if(shows(block, col0, i), next_v[i]);
                }
            }
#endif
            barrier();  // the tile before is read; with F32X2, tile_amax written before it is read
#ifdef F32X2
            const uvec2 exponents = tile_exponents();
#endif
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                put_kv(i, next_k[i], next_v[i], scale_of(exponents.x), scale_of(exponents.y));
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
#ifdef QUANT
                SUM_COLUMN(n)
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r * COL_TILES + n] = scores_of(sum[r]);
                }
#else
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r * COL_TILES + n] = MatC(0.0);
                }
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    fence(d);
                    MatB kt;  // K^T: a row-major tile of K read by columns
                    coopMatLoad(kt, tile, n * MAT_N * LD + d * (MAT_N / 8), LD, COLUMN_MAJOR);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        S.at[r * COL_TILES + n] = coopMatMulAdd(Q_[r * DIM_TILES + d], kt, S.at[r * COL_TILES + n]);
                    }
                }
#endif
            }
#ifdef QUANT
            FOLD_TILE(col0)
#endif
#ifdef FEATURES
            const bool cut = MASKED && !all_rows_see(row0, col0);
#ifdef QUANT
            if (LOGITS) {
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    [[unroll]] for (uint i = 0; i < ROWS; i++) {
                        fold_row(S, r, i, fold[r * ROWS + i]);
                        fold[r * ROWS + i] = 1.0;
                    }
                }
            }
#endif
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
                        weight[i] = exp2(fma(S.at[r * COL_TILES + n][i], ROW_SCALE(r, i / ROW_RUN), -m[r * ROWS + i / ROW_RUN]));
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
                    coopMatLoad(v, tile, VALUES_AT(n) + d * (MAT_N / 8), LD, ROW_MAJOR);
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
            bool finite = true;
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    finite = finite && is_steady_sum(l[r * ROWS + i]);
                }
                [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                    [[unroll]] for (uint e = 0; e < LENGTH; e++) {
                        finite = finite && is_finite(O_[r * VALUE_TILES + d][e]);
                    }
                }
            }
            if (any_of_workgroup(!finite)) {  // from the first key on, as if there were no such tiles
                k_at -= (col0 - first_key) * p.k_stride_s;
                v_at -= (col0 - first_key) * p.v_stride_s;
                col0 = first_key;
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    [[unroll]] for (uint i = 0; i < ROWS; i++) {
                        m[r * ROWS + i] = MAX_INIT;
                        l[r * ROWS + i] = 0.0;
                    }
                    [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                        O_[r * VALUE_TILES + d] = MatC(0.0);
                    }
                }
                FETCH_NEXT(k_at, v_at, last - first_key)
            }
        }
#endif
    }

    // O is divided by l, and O and LSE are written.
    const uint out_row = work.split * p.seq_q;  // where the rows of the head begin
    const uint o_base = HEAD_AT(o, batch, head) + (out_row + block_row) * p.o_stride_s;
    const uint lse_base = HEAD_AT(lse, batch, head) + (out_row + block_row) * p.lse_stride_s;
#ifndef F32X2
    const MatC index = element_index();
#endif
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC sum;
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            sum[i] = l[r * ROWS + i];
        }
        sum = reduce(sum, true);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = subgroup_row + r * MAT_M + uint(index[i * ROW_RUN]) / MAT_N;  // within the block
#ifdef FEATURES
            float row_m = PLAIN_M(m[r * ROWS + i]);
            float row_l = PLAIN_L(sum[i]);
            const float inverse = finish_row(block, row_m, row_l);
            if (WRITE_LSE && block_row + row < p.seq_q && speaks_for_row(index[i * ROW_RUN])) {
                put_lse(lse_base + row * p.lse_stride_s, row_m, row_l);
            }
#else
            if (WRITE_LSE && block_row + row < p.seq_q && speaks_for_row(index[i * ROW_RUN])) {
                put_lse(lse_base + row * p.lse_stride_s, PLAIN_M(m[r * ROWS + i]), PLAIN_L(sum[i]));
            }
            const float inverse = SPLIT_KV ? 1.0 : OUT_SCALE(sum[i]);
#endif
            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                    O_[r * VALUE_TILES + d][e] *= inverse;
                }
            }
        }
    }
#ifndef F32X2  // where O is always float32
    if (SPLIT_KV)
#endif
    {
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
#ifndef F32X2
        return;
#endif
    }
#ifndef F32X2
    [[unroll]] for (uint stage = 0; stage < VALUE_STAGES; stage++) {
        barrier();  // the last key tile, or the columns before, are read
        [[unroll]] for (uint e = 0; e < STAGE_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * STAGE_TILES + e < VALUE_TILES) {
                    coopMatStore(to_left(O_[r * VALUE_TILES + stage * STAGE_TILES + e], false), tile,
                                 stage_at(subgroup_row + r * MAT_M, e), STAGE_LD, ROW_MAJOR);
                }
            }
        }
        store_o(o_base, block_row, stage * STAGE_TILES);
    }
#endif
}
