// fwd_matrix_f32x2: fused attention forward of float32 tensors on matrices of
// float16, with the errors of float32.
//
// The walk over the keys is lib/fwd_matrix.glsl's. Every operand is the sum of
// two float16, hi + lo (lib/f32x2.glsl), and a product is three:
//
//     x * y = hi*hi + (hi*lo + lo*hi) + lo*lo
//                                       ----- left out
//
// Products of float16 are exact in float32. The errors of one term, relative to
// |x| * |y|, u = 2^-24 the unit roundoff of float32:
//
//     x, y as parts   2u each at most, u/2 on average
//     lo*lo           2^-22 = 4u at most, u/2 on average; of random sign
//     sum             as float32 sums, but of MAT_N terms at a time
//
// A plain program adds head_dim (or seq_kv) terms one by one and errs by about
// sqrt(head_dim) * u of the same norm, so that ours are hidden in it; only a row
// that has all its weight on one key shows that its V is right to 2u and not
// exact. Two things would not be hidden:
//
//   - Matrix units may cut off a sum's last bit where float32 arithmetic rounds
//     it (Fasi et al., Numerical behavior of NVIDIA tensor cores, 2021). Cuts
//     do not cancel: over thousands of keys they would add up. So O gets the
//     sum of each key tile by a float32 addition. The small products, hi*lo +
//     lo*hi, never meet a sum of the large ones more often than that either.
//   - The range of float16. Each row of Q, each key tile of K and of V has a
//     power of two of its own, which is exact: those of Q and K are undone in
//     the scale of S, that of V where its tile's sum is added to O. P is
//     computed relative to 2^-HEADROOM of the row's maximum, so that the
//     largest weights lie high in float16's range: weights are right to 2^-32
//     of the largest.
//
// What is not as in float32: an element of V or K that is below 2^-16 of the
// largest of its key tile, or of Q of its row, is right to 2^-39 of that
// largest instead of relatively; and O overflows like a float32 sum of P * V
// before the division by the sum of P, P at most 1.
#ifndef LIB_FWD_MATRIX_F32X2_GLSL
#define LIB_FWD_MATRIX_F32X2_GLSL

#include "softmax.glsl"
#include "mask.glsl"
#include "order.glsl"
#include "split_kv.glsl"
#include "tile_f32x2.glsl"
#include "scores.glsl"
#include "key_range.glsl"
#include "store_float.glsl"
#ifdef FEATURES
const bool LOGITS = SOFTCAP || ALIBI || BIAS;
#include "features.glsl"
#include "feature_tile.glsl"
#endif

// m is log2 of the scale that O and l are relative to: a row's maximum at the
// last rescale less HEADROOM. A row is rescaled when it has grown by more than
// RESCALE_THRESHOLD beyond that maximum, so P <= 2^15.
const float RESCALE_THRESHOLD = 8.0;
const float HEADROOM = 7.0;
const uint P_TOP = 15;
const float P_UNIT = float(1u << P_TOP);

// fold_scores returns 2^exponent * mantissa, what S is multiplied by to be a
// base-2 logit. It is never 0, as a hidden key has S = -inf.
float fold_scores(const int exponent, const float mantissa) {
    return uintBitsToFloat(uint(clamp(exponent + int(FLOAT_BIAS), 1, 254)) << 23) * mantissa;
}

// fold_values returns what the sum over a tile of V with this exponent is
// multiplied by when it is added to O. O is kept in units of V * P / 2^P_TOP,
// in which no weight is above 1.
float fold_values(const uint exponent) {
    return uintBitsToFloat((exponent - TOP - P_TOP) << 23);
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
    const int first_key = share_first(work.split, block_keys(block_row));
    const int end_key = share_end(work.split, block_keys(block_row));
    const int full_end = SPLIT_KV ? min(full_keys(block_row), end_key) : full_keys(block_row);
    const int subgroup_end = visible_keys(row0 + int(SUBGROUP_ROWS) - 1);
#ifdef FEATURES
    const uint last = last_key();
#else
    const uint last = p.seq_kv - 1;
#endif
    uint k_at = p.k_offset + batch * p.k_stride_b + kv_head * p.k_stride_h + first_key * p.k_stride_s;
    uint v_at = p.v_offset + batch * p.v_stride_b + kv_head * p.v_stride_h + first_key * p.v_stride_s;
    Elems8 next_k[COPIES];
    Elems8 next_v[COPIES];
    if (PREFETCH && KEYS_FIRST) {
        [[unroll]] for (uint i = 0; i < COPIES; i++) {
            next_k[i] = fetch_k(k_at, i, last - first_key);
            next_v[i] = fetch_v(v_at, i, last - first_key);
        }
    }

    // Scale * log2(e) = 2^exponent * mantissa, so that exponents add up without overflow on the way.
#ifdef FEATURES
    const uint scale_bits = floatBitsToUint(args.plain.scale_log2);
#else
    const uint scale_bits = floatBitsToUint(p.scale_log2);
#endif
    const float scale_mantissa = uintBitsToFloat(scale_bits & 0x7fffffu | FLOAT_BIAS << 23);
    const int scale_exponent = int(scale_bits >> 23) - int(FLOAT_BIAS);

    MatA Q_hi[ROW_TILES * DIM_TILES];    // (SUBGROUP_ROWS, head_dim)
    MatA Q_lo[ROW_TILES * DIM_TILES];
    MatC O_[ROW_TILES * VALUE_TILES];    // (SUBGROUP_ROWS, value_dim)
    float m[ROW_TILES * ROWS];           // what O and l are relative to, base 2
    float l[ROW_TILES * ROWS];           // this invocation's share of the row's sum
    int row_exponent[ROW_TILES * ROWS];  // of Scale * log2(e) * Q, and of the two TOP in S
    const MatC index = element_index();
    const uint q_base = p.q_offset + batch * p.q_stride_b + head * p.q_stride_h;
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC x[DIM_TILES];
        MatC top;  // largest |Q| of the rows
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = min(uint(row0) + r * MAT_M + uint(index[i * ROW_RUN]) / MAT_N, p.seq_q - 1);
            top[i] = 0.0;
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                    const uint col = d * MAT_N + uint(index[e]) % MAT_N;
                    const bool inside = HEAD_DIM % MAT_N == 0 || col < HEAD_DIM;
                    x[d][e] = inside ? q1[q_base + row * p.q_stride_s + col] : 0.0;
                    top[i] = max(top[i], abs(x[d][e]));
                }
            }
        }
        top = reduce(top, false);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint exponent = exponent_of(floatBitsToUint(top[i]));
            m[r * ROWS + i] = MAX_INIT;
            l[r * ROWS + i] = 0.0;
            row_exponent[r * ROWS + i] = scale_exponent + int(exponent) - int(FLOAT_BIAS) - 2 * int(TOP);
            top[i] = p.q_sign != 0 ? -scale_of(exponent) : scale_of(exponent);
        }
        [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
            MatC hi;
            MatC lo;
            [[unroll]] for (uint e = 0; e < LENGTH; e++) {
                const float y = x[d][e] * top[e / ROW_RUN];
                hi[e] = round_to_hi(y);
                lo[e] = y - hi[e];
            }
            Q_hi[r * DIM_TILES + d] = to_left(hi, true);
            Q_lo[r * DIM_TILES + d] = to_left(lo, false);
#ifndef FEATURES
            O_[r * DIM_TILES + d] = MatC(0.0);
#endif
        }
#ifdef FEATURES
        [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
            O_[r * VALUE_TILES + d] = MatC(0.0);
        }
#endif
    }

    if (PREFETCH && !KEYS_FIRST) {
        [[unroll]] for (uint i = 0; i < COPIES; i++) {
            next_k[i] = fetch_k(k_at, i, last - first_key);
            next_v[i] = fetch_v(v_at, i, last - first_key);
        }
    }

    // Two phases, unrolled: tiles without a mask, then the rest, as in lib/fwd_matrix.glsl.
    int col0 = first_key;
    [[unroll]] for (uint phase = SPLIT_LOOP ? 0 : 1; phase < 2; phase++) {
        const bool MASKED = phase == 1;
        // Unrolled, this loop only grows.
        [[dont_unroll]] for (; col0 < (MASKED ? end_key : full_end); col0 += int(BLOCK_N)) {
            if (!PREFETCH) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    next_k[i] = fetch_k(k_at, i, MASKED ? last - col0 : BLOCK_N);
                    next_v[i] = fetch_v(v_at, i, MASKED ? last - col0 : BLOCK_N);
                }
            }
            float k_top = 0.0;
            float v_top = 0.0;
#ifdef FEATURES
            if (hides_values()) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    const bool visible = shows(block, col0, i);
                    next_k[i] = keep_if(visible, next_k[i]);  // what no row sees has no say in the exponents
                    next_v[i] = keep_if(visible, next_v[i]);
                }
            }
#endif
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                k_top = max(k_top, largest(next_k[i]));
                v_top = max(v_top, largest(next_v[i]));
            }
            share_tops(k_top, v_top);
            barrier();  // the tile before is read; tile_tops written before it is read
            const uvec2 exponents = tile_exponents();
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                put_kv(i, next_k[i], next_v[i], scale_of(exponents.x), scale_of(exponents.y));
#ifdef FEATURES
                put_shown(block, col0, i);
#endif
            }
#ifdef FEATURES
            fill_kept(block, block_row, col0);
#endif
            barrier();  // tile written before it is read; tile_tops is read
            k_at += BLOCK_N * p.k_stride_s;
            v_at += BLOCK_N * p.v_stride_s;
            if (PREFETCH) {
                // Past the end, the last key again: a wasted load is cheaper than a branch.
                const uint rest = uint(max(int(last) - col0 - int(BLOCK_N), 0));
                const uint back = col0 + BLOCK_N > last ? BLOCK_N : 0;
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    next_k[i] = fetch_k(k_at - back * p.k_stride_s, i, rest);
                    next_v[i] = fetch_v(v_at - back * p.v_stride_s, i, rest);
                }
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

            Scores S;
            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                MatC small[ROW_TILES];  // hi*lo + lo*hi
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r * COL_TILES + n] = MatC(0.0);
                    small[r] = MatC(0.0);
                }
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    fence(d);
                    MatB hi;  // K^T: a row-major tile of K read by columns
                    MatB lo;
                    const uint at = n * MAT_N * LD + d * (MAT_N / 8);
                    coopMatLoad(hi, tile, K_HI + at, LD, gl_CooperativeMatrixLayoutColumnMajor);
                    coopMatLoad(lo, tile, K_LO + at, LD, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        S.at[r * COL_TILES + n] = coopMatMulAdd(Q_hi[r * DIM_TILES + d], hi, S.at[r * COL_TILES + n]);
                        small[r] = coopMatMulAdd(Q_hi[r * DIM_TILES + d], lo, small[r]);
                        small[r] = coopMatMulAdd(Q_lo[r * DIM_TILES + d], hi, small[r]);
                    }
                }
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r * COL_TILES + n] += small[r];
                }
            }
            float fold[ROW_TILES * ROWS];  // base-2 logits = S * fold
#ifdef FEATURES
            const bool cut = MASKED && !all_rows_see(row0, col0);
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    fold[r * ROWS + i] = fold_scores(row_exponent[r * ROWS + i] + int(exponents.x) - int(FLOAT_BIAS), scale_mantissa);
                    if (LOGITS) {
                        fold_row(S, r, i, fold[r * ROWS + i]);
                        fold[r * ROWS + i] = 1.0;
                    }
                }
            }
            if (LOGITS || KEY_MASK || cut) {
                score_tile(S, block, index, 1.0, row0, col0, cut);
            }
#else
            if (MASKED && col0 + int(BLOCK_N) > visible_keys(row0)) {  // not if all rows see the tile
                hide_keys(S, row0, col0);
            }
#endif

            MatC t[ROW_TILES];             // maxima of this invocation's logits
            bool grew = false;
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
#ifndef FEATURES
                    fold[r * ROWS + i] = fold_scores(row_exponent[r * ROWS + i] + int(exponents.x) - int(FLOAT_BIAS), scale_mantissa);
#endif
                    t[r][i] = row_top(S, r, i) * fold[r * ROWS + i];
                    grew = grew || t[r][i] > m[r * ROWS + i] + (HEADROOM + RESCALE_THRESHOLD);
                }
            }
            // The test needs no reduction: a row grew where one of its elements did.
            if (subgroupAny(grew)) {
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    const MatC top = reduce(t[r], false);
                    [[unroll]] for (uint i = 0; i < ROWS; i++) {
                        const float m_new = max(m[r * ROWS + i], top[i] - HEADROOM);
                        const float alpha = exp2(m[r * ROWS + i] - m_new);
                        m[r * ROWS + i] = m_new;
                        l[r * ROWS + i] *= alpha;
                        [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                            [[unroll]] for (uint e = 0; e < ROW_RUN; e++) {
                                O_[r * VALUE_TILES + d][i * ROW_RUN + e] *= alpha;
                            }
                        }
                    }
                }
            }

            MatA P_hi[ROW_TILES * COL_TILES];  // (SUBGROUP_ROWS, BLOCK_N)
            MatA P_lo[ROW_TILES * COL_TILES];
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    MatC hi;
                    MatC lo;
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        float weight = exp2(fma(S.at[r * COL_TILES + n][i], fold[r * ROWS + i / ROW_RUN], -m[r * ROWS + i / ROW_RUN]));
                        l[r * ROWS + i / ROW_RUN] += weight;
#ifdef FEATURES
                        const uint at = uint(index[i]);
                        weight = is_kept(subgroup_row + r * MAT_M + at / MAT_N, n * MAT_N + at % MAT_N) ? weight : 0.0;
#endif
                        hi[i] = round_to_hi(weight);
                        lo[i] = weight - hi[i];
                    }
                    P_hi[r * COL_TILES + n] = to_left(hi, true);
                    P_lo[r * COL_TILES + n] = to_left(lo, false);
                }
            }

            const float fold_o = fold_values(exponents.y);
            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                fence(d);
                MatB hi[COL_TILES];
                MatC sum[ROW_TILES];  // of this tile
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    sum[r] = MatC(0.0);
                }
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    MatB lo;
                    const uint at = n * MAT_N * LD + d * (MAT_N / 8);
                    coopMatLoad(hi[n], tile, V_HI + at, LD, gl_CooperativeMatrixLayoutRowMajor);
                    coopMatLoad(lo, tile, V_LO + at, LD, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        sum[r] = coopMatMulAdd(P_hi[r * COL_TILES + n], lo, sum[r]);
                        sum[r] = coopMatMulAdd(P_lo[r * COL_TILES + n], hi[n], sum[r]);
                    }
                }
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        sum[r] = coopMatMulAdd(P_hi[r * COL_TILES + n], hi[n], sum[r]);
                    }
                }
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        O_[r * VALUE_TILES + d][i] = fma(sum[r][i], fold_o, O_[r * VALUE_TILES + d][i]);
                    }
                }
            }
        }
    }

    const uint out_row = work.split * p.seq_q;  // where the rows of the head begin
    const uint o_base = p.o_offset + batch * p.o_stride_b + head * p.o_stride_h + (out_row + block_row) * p.o_stride_s;
    const uint lse_base = p.lse_offset + batch * p.lse_stride_b + head * p.lse_stride_h + (out_row + block_row) * p.lse_stride_s;
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC sum;
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            sum[i] = l[r * ROWS + i];
        }
        sum = reduce(sum, true);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = subgroup_row + r * MAT_M + uint(index[i * ROW_RUN]) / MAT_N;  // within the block
#ifdef FEATURES
            float row_m = m[r * ROWS + i] + P_TOP;
            float row_l = sum[i] / P_UNIT;
            const float inverse = finish_row(block, row_m, row_l);
            if (WRITE_LSE && block_row + row < p.seq_q && speaks_for_row(index[i * ROW_RUN])) {
                put_lse(lse_base + row * p.lse_stride_s, row_m, row_l);
            }
#else
            if (WRITE_LSE && block_row + row < p.seq_q && speaks_for_row(index[i * ROW_RUN])) {
                put_lse(lse_base + row * p.lse_stride_s, m[r * ROWS + i] + P_TOP, sum[i] / P_UNIT);
            }
            const float inverse = SPLIT_KV ? 1.0 : inverse_sum(sum[i]) * P_UNIT;
#endif
            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                    O_[r * VALUE_TILES + d][e] *= inverse;
                }
            }
        }
    }
    [[unroll]] for (uint stage = 0; stage < FLOAT_STAGES; stage++) {
        barrier();  // the last key tile, or the columns before, are read
        [[unroll]] for (uint e = 0; e < FLOAT_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * FLOAT_TILES + e < VALUE_TILES) {
                    coopMatStore(O_[r * VALUE_TILES + stage * FLOAT_TILES + e], tile, float_at(subgroup_row + r * MAT_M, e), FLOAT_LD,
                                 gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        store_floats(o_base, block_row, stage * FLOAT_TILES);
    }
}

#endif
