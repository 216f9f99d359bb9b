// fwd_matrix_split: fused attention forward of float32 tensors on matrices of
// float16, with the errors of float32.
//
// The walk over the keys is lib/fwd_matrix.glsl's. Every operand is the sum of
// two float16, hi + lo (lib/split.glsl), and a product is three:
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
// sqrt(head_dim) * u of the same norm, so that ours are hidden in it. Three
// things would not be:
//
//   - The last bit of V, which hi + lo lacks. Where a row has all its weight on
//     one key, a plain program gives that key's V exactly. So P * V gets the
//     rest of V too, a fourth product, in tiles where some weight exceeds the
//     sum of the tiles before. Other keys have at most half of their row's weight, and half of
//     a last bit is what rounding O costs anyway.
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
#ifndef LIB_FWD_MATRIX_SPLIT_GLSL
#define LIB_FWD_MATRIX_SPLIT_GLSL

#include "softmax.glsl"
#include "mask.glsl"
#include "order.glsl"
#include "tile_split.glsl"

// m is log2 of the scale that O and l are relative to: a row's maximum at the
// last rescale less HEADROOM. A row is rescaled when it has grown by more than
// RESCALE_THRESHOLD beyond that maximum, so P <= 2^15.
const float RESCALE_THRESHOLD = 8.0;
const float HEADROOM = 7.0;
const uint P_TOP = 15;

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
    const uint kv_head = head / p.heads_per_kv;
    const uint block_row = work.block * BLOCK_M;
    const uint subgroup_row = gl_SubgroupID * SUBGROUP_ROWS;  // within the block
    const int row0 = int(block_row + subgroup_row);           // first row of this subgroup

    MatA Q_hi[ROW_TILES * DIM_TILES];  // (SUBGROUP_ROWS, head_dim)
    MatA Q_lo[ROW_TILES * DIM_TILES];
    const uint q_base = p.q_offset + batch * p.q_stride_b + head * p.q_stride_h + block_row * p.q_stride_s;
    find_q_exponents(q_base, block_row);
    [[unroll]] for (uint stage = 0; stage < BLOCK_M; stage += STAGE_ROWS) {
        stage_q(q_base, block_row, stage);
        if (subgroup_row >= stage && subgroup_row < stage + STAGE_ROWS) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    const uint at = (subgroup_row - stage + r * MAT_M) * LD + d * (MAT_N / 8);
                    coopMatLoad(Q_hi[r * DIM_TILES + d], tile, Q_HI + at, LD, gl_CooperativeMatrixLayoutRowMajor);
                    coopMatLoad(Q_lo[r * DIM_TILES + d], tile, Q_LO + at, LD, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
    }

    // Scale * log2(e) = 2^exponent * mantissa, so that exponents add up without overflow on the way.
    const uint scale_bits = floatBitsToUint(p.scale_log2);
    const float scale_mantissa = uintBitsToFloat(scale_bits & 0x7fffffu | FLOAT_BIAS << 23);
    const int scale_exponent = int(scale_bits >> 23) - int(FLOAT_BIAS);

    MatC O_[ROW_TILES * DIM_TILES];      // (SUBGROUP_ROWS, head_dim)
    float m[ROW_TILES * ROWS];           // what O and l are relative to, base 2
    float l[ROW_TILES * ROWS];           // this invocation's share of the row's sum
    int row_exponent[ROW_TILES * ROWS];  // of Scale * log2(e) * Q, and of the two TOP in S
    {
        const MatC index = element_index();
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                const uint row = subgroup_row + r * MAT_M + uint(index[i * ROW_RUN]) / MAT_N;
                m[r * ROWS + i] = MAX_INIT;
                l[r * ROWS + i] = 0.0;
                row_exponent[r * ROWS + i] = scale_exponent + int(q_exponents[row]) - int(FLOAT_BIAS) - 2 * int(TOP);
            }
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                O_[r * DIM_TILES + d] = MatC(0.0);
            }
        }
    }

    // Keys that every row of the block sees, in whole tiles; that some row sees;
    // that some row of the subgroup sees.
    const uint last = p.seq_kv - 1;
    const int full_keys = max(visible_keys(int(block_row)), 0) / int(BLOCK_N) * int(BLOCK_N);
    const int block_keys = visible_keys(int(min(block_row + BLOCK_M, p.seq_q)) - 1);
    const int subgroup_keys = visible_keys(row0 + int(SUBGROUP_ROWS) - 1);

    uint k_at = p.k_offset + batch * p.k_stride_b + kv_head * p.k_stride_h;
    uint v_at = p.v_offset + batch * p.v_stride_b + kv_head * p.v_stride_h;
    Elems8 next_k[COPIES];
    Elems8 next_v[COPIES];
    if (PREFETCH) {
        [[unroll]] for (uint i = 0; i < COPIES; i++) {
            next_k[i] = fetch_k(k_at, i, last);
            next_v[i] = fetch_v(v_at, i, last);
        }
    }

    // Two phases, unrolled: tiles without a mask, then the rest, as in lib/fwd_matrix.glsl.
    int col0 = 0;
    [[unroll]] for (uint phase = SPLIT_LOOP ? 0 : 1; phase < 2; phase++) {
        const bool MASKED = phase == 1;
        // Unrolled, this loop only grows.
        [[dont_unroll]] for (; col0 < (MASKED ? block_keys : full_keys); col0 += int(BLOCK_N)) {
            if (!PREFETCH) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    next_k[i] = fetch_k(k_at, i, MASKED ? last - col0 : BLOCK_N);
                    next_v[i] = fetch_v(v_at, i, MASKED ? last - col0 : BLOCK_N);
                }
            }
            float k_top = 0.0;
            float v_top = 0.0;
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                k_top = max(k_top, largest(next_k[i]));
                v_top = max(v_top, largest(next_v[i]));
            }
            share_tops(k_top, v_top);
            barrier();  // the tile before is read; tile_tops written before it is read
            const uvec2 exponents = tile_exponents();
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                put_kv(i, next_k[i], next_v[i], scale_of(exponents.x), scale_of(exponents.y));
            }
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
            if (MASKED && CAUSAL && col0 >= subgroup_keys) {
                continue;  // no row of this subgroup sees the tile; the loop's barriers are still met
            }

            MatC S[ROW_TILES * COL_TILES];  // (SUBGROUP_ROWS, BLOCK_N)
            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                MatC small[ROW_TILES];  // hi*lo + lo*hi
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S[r * COL_TILES + n] = MatC(0.0);
                    small[r] = MatC(0.0);
                }
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    MatB hi;  // K^T: a row-major tile of K read by columns
                    MatB lo;
                    const uint at = n * MAT_N * LD + d * (MAT_N / 8);
                    coopMatLoad(hi, tile, K_HI + at, LD, gl_CooperativeMatrixLayoutColumnMajor);
                    coopMatLoad(lo, tile, K_LO + at, LD, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        S[r * COL_TILES + n] = coopMatMulAdd(Q_hi[r * DIM_TILES + d], hi, S[r * COL_TILES + n]);
                        small[r] = coopMatMulAdd(Q_hi[r * DIM_TILES + d], lo, small[r]);
                        small[r] = coopMatMulAdd(Q_lo[r * DIM_TILES + d], hi, small[r]);
                    }
                }
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S[r * COL_TILES + n] += small[r];
                }
            }
            if (MASKED) {
                const MatC index = element_index();
                [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                    const int row = row0 + int(index[i]) / int(MAT_N);
                    const int col = col0 + int(index[i]) % int(MAT_N);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        const int keys = visible_keys(row + int(r * MAT_M));
                        [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                            const float s = S[r * COL_TILES + n][i];
                            S[r * COL_TILES + n][i] = col + int(n * MAT_N) < keys ? s : NEG_INF;
                        }
                    }
                }
            }

            float fold[ROW_TILES * ROWS];  // base-2 logits = S * fold
            MatC t[ROW_TILES];             // maxima of this invocation's logits
            bool grew = false;
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    float x = S[r * COL_TILES][i * ROW_RUN];
                    [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                        [[unroll]] for (uint e = 0; e < ROW_RUN; e++) {
                            x = max(x, S[r * COL_TILES + n][i * ROW_RUN + e]);
                        }
                    }
                    fold[r * ROWS + i] = fold_scores(row_exponent[r * ROWS + i] + int(exponents.x) - int(FLOAT_BIAS), scale_mantissa);
                    t[r][i] = x * fold[r * ROWS + i];
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
                        [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                            [[unroll]] for (uint e = 0; e < ROW_RUN; e++) {
                                O_[r * DIM_TILES + d][i * ROW_RUN + e] *= alpha;
                            }
                        }
                    }
                }
            }

            bool heavy = false;  // a weight exceeds the sum before this tile
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    heavy = heavy || exp2(t[r][i] - m[r * ROWS + i]) > l[r * ROWS + i];
                }
            }

            MatA P_hi[ROW_TILES * COL_TILES];  // (SUBGROUP_ROWS, BLOCK_N)
            MatA P_lo[ROW_TILES * COL_TILES];
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    MatC hi;
                    MatC lo;
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        const float weight = exp2(fma(S[r * COL_TILES + n][i], fold[r * ROWS + i / ROW_RUN], -m[r * ROWS + i / ROW_RUN]));
                        l[r * ROWS + i / ROW_RUN] += weight;
                        hi[i] = round_to_hi(weight);
                        lo[i] = weight - hi[i];
                    }
                    P_hi[r * COL_TILES + n] = to_left(hi, true);
                    P_lo[r * COL_TILES + n] = to_left(lo, false);
                }
            }

            const float fold_o = fold_values(exponents.y);
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
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
                        O_[r * DIM_TILES + d][i] = fma(sum[r][i], fold_o, O_[r * DIM_TILES + d][i]);
                    }
                }
            }
            if (subgroupAny(heavy)) {
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    MatC sum[ROW_TILES];
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        sum[r] = MatC(0.0);
                    }
                    [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                        MatB rest;
                        coopMatLoad(rest, tile, V_REST + n * MAT_N * LD + d * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutRowMajor);
                        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                            sum[r] = coopMatMulAdd(P_hi[r * COL_TILES + n], rest, sum[r]);
                        }
                    }
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                            O_[r * DIM_TILES + d][i] = fma(sum[r][i], fold_o, O_[r * DIM_TILES + d][i]);
                        }
                    }
                }
            }
        }
    }

    // Straight from the matrices: where four invocations share a row and hold
    // neighbouring elements, they fill whole sectors of 32 bytes.
    const uint o_base = p.o_offset + batch * p.o_stride_b + head * p.o_stride_h;
    const uint lse_base = p.lse_offset + batch * p.lse_stride_b + head * p.lse_stride_h;
    const MatC index = element_index();
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC sum;
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            sum[i] = l[r * ROWS + i];
        }
        sum = reduce(sum, true);
        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
            const uint row = uint(row0) + r * MAT_M + uint(index[i]) / MAT_N;
            const uint col = uint(index[i]) % MAT_N;
            const float inverse = inverse_sum(sum[i / ROW_RUN]) * float(1u << P_TOP);
            if (row < p.seq_q) {
                if (WRITE_LSE && col == 0) {
                    lse_out[lse_base + row * p.lse_stride_s] = lse(m[r * ROWS + i / ROW_RUN], sum[i / ROW_RUN]);
                }
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    if (d * MAT_N + col < HEAD_DIM) {
                        o[o_base + row * p.o_stride_s + d * MAT_N + col] = O_[r * DIM_TILES + d][i] * inverse;
                    }
                }
            }
        }
    }
}

#endif
