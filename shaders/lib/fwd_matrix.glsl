// fwd_matrix: fused attention forward on cooperative matrices, for every path
// that has them. The kernels differ in how they reach the rows of a matrix:
// lib/rows_coopmat.glsl or lib/rows_coopmat2.glsl.
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
// at most 256, and the final division cancels the difference.
#ifndef LIB_FWD_MATRIX_GLSL
#define LIB_FWD_MATRIX_GLSL

#include "softmax.glsl"
#include "mask.glsl"
#include "order.glsl"
#include "split_kv.glsl"
#include "tile.glsl"

const float RESCALE_THRESHOLD = 8.0;

// fence keeps the compiler from loading operands far ahead of their products,
// which costs registers, and past 255 of them spills. It orders the shared
// memory accesses of one subgroup, and is no instruction on NVIDIA.
void fence() {
    subgroupMemoryBarrierShared();
}

void forward() {
    const Work work = next_work();
    const uint head = work.head;
    const uint batch = work.batch;
    const uint kv_head = head / p.heads_per_kv;
    const uint block_row = work.block * BLOCK_M;
    const uint subgroup_row = gl_SubgroupID * SUBGROUP_ROWS;  // within the block
    const int row0 = int(block_row + subgroup_row);           // first row of this subgroup

    MatA Q_[ROW_TILES * DIM_TILES];  // (SUBGROUP_ROWS, head_dim)
    const uint q_base = p.q_offset + batch * p.q_stride_b + head * p.q_stride_h + block_row * p.q_stride_s;
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

    MatC O_[ROW_TILES * DIM_TILES];  // (SUBGROUP_ROWS, head_dim)
    float m[ROW_TILES * ROWS];       // running maximum, base 2
    float l[ROW_TILES * ROWS];       // this invocation's share of the row's sum
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            m[r * ROWS + i] = MAX_INIT;
            l[r * ROWS + i] = 0.0;
        }
        [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
            O_[r * DIM_TILES + d] = MatC(0.0);
        }
    }

    // Keys that every row of the block sees, in whole tiles; that some row sees;
    // that some row of the subgroup sees.
    const uint last = p.seq_kv - 1;
    const int whole_keys = max(visible_keys(int(block_row)), 0) / int(BLOCK_N) * int(BLOCK_N);
    const Keys share = share_of(work.split, visible_keys(int(min(block_row + BLOCK_M, p.seq_q)) - 1));
    const int first_key = share.first;
    const int block_keys = share.end;
    const int full_keys = SPLIT_KV ? min(whole_keys, block_keys) : whole_keys;
    const int subgroup_keys = visible_keys(row0 + int(SUBGROUP_ROWS) - 1);
    const bool idle = SPLIT_KV && row0 >= int(p.seq_q);  // no rows: the subgroup helps to copy

    uint k_at = p.k_offset + batch * p.k_stride_b + kv_head * p.k_stride_h + first_key * p.k_stride_s;
    uint v_at = p.v_offset + batch * p.v_stride_b + kv_head * p.v_stride_h + first_key * p.v_stride_s;
    uvec4 next_k[COPIES];
    uvec4 next_v[COPIES];
    if (PREFETCH) {
        [[unroll]] for (uint i = 0; i < COPIES; i++) {
            next_k[i] = fetch_k(k_at, i, last - first_key);
            next_v[i] = fetch_v(v_at, i, last - first_key);
        }
    }

    // Two phases, unrolled: tiles without a mask, then the rest. A test inside
    // one loop would cost a copy of S on the way that skips the mask (48 of 830
    // instructions on NVIDIA). Without SPLIT_LOOP there is less to compile.
    int col0 = first_key;
    [[unroll]] for (uint phase = SPLIT_LOOP ? 0 : 1; phase < 2; phase++) {
        const bool MASKED = phase == 1;
        // Unrolled, this loop only grows: five times the code, ten times the compile time.
        [[dont_unroll]] for (; col0 < (MASKED ? block_keys : full_keys); col0 += int(BLOCK_N)) {
            barrier();  // the tile before is read
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                if (!PREFETCH) {
                    if (FENCE > 0 && i % 4 == 0) {
                        fence();
                    }
                    next_k[i] = fetch_k(k_at, i, MASKED ? last - col0 : BLOCK_N);
                    next_v[i] = fetch_v(v_at, i, MASKED ? last - col0 : BLOCK_N);
                }
                put_kv(i, next_k[i], next_v[i]);
            }
            barrier();  // tile written before it is read
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
            if (idle || MASKED && CAUSAL && col0 >= subgroup_keys) {
                continue;  // no row of this subgroup sees the tile; the loop's barriers are still met
            }

            MatC S[ROW_TILES * COL_TILES];  // (SUBGROUP_ROWS, BLOCK_N)
            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S[r * COL_TILES + n] = MatC(0.0);
                }
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    if (FENCE > 0 && d % FENCE == 0) {
                        fence();
                    }
                    MatB kt;  // K^T: a row-major tile of K read by columns
                    coopMatLoad(kt, tile, n * MAT_N * LD + d * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        S[r * COL_TILES + n] = coopMatMulAdd(Q_[r * DIM_TILES + d], kt, S[r * COL_TILES + n]);
                    }
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

            MatC t[ROW_TILES];  // maxima of this invocation's scores
            bool grew = false;
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    float x = S[r * COL_TILES][i * ROW_RUN];
                    [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                        [[unroll]] for (uint e = 0; e < ROW_RUN; e++) {
                            x = max(x, S[r * COL_TILES + n][i * ROW_RUN + e]);
                        }
                    }
                    t[r][i] = x * p.scale_log2;
                    grew = grew || t[r][i] > m[r * ROWS + i] + RESCALE_THRESHOLD;
                }
            }
            // The test needs no reduction: a row grew where one of its elements did.
            if (subgroupAny(grew)) {
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    const MatC top = reduce(t[r], false);
                    [[unroll]] for (uint i = 0; i < ROWS; i++) {
                        const float m_new = max(m[r * ROWS + i], top[i]);
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

            MatA P[ROW_TILES * COL_TILES];  // (SUBGROUP_ROWS, BLOCK_N)
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    MatC weight;
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        weight[i] = exp2(fma(S[r * COL_TILES + n][i], p.scale_log2, -m[r * ROWS + i / ROW_RUN]));
                        l[r * ROWS + i / ROW_RUN] += weight[i];
                    }
                    P[r * COL_TILES + n] = to_left(weight, true);
                }
            }

            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    if (FENCE > 0 && d % FENCE == 0) {
                        fence();
                    }
                    MatB v;
                    coopMatLoad(v, tile, (BLOCK_N + n * MAT_N) * LD + d * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        O_[r * DIM_TILES + d] = coopMatMulAdd(P[r * COL_TILES + n], v, O_[r * DIM_TILES + d]);
                    }
                }
            }
        }
    }

    const uint out_row = work.split * p.seq_q;  // where the rows of the head begin
    const uint o_base = p.o_offset + batch * p.o_stride_b + head * p.o_stride_h + (out_row + block_row) * p.o_stride_s;
    const uint lse_base = p.lse_offset + batch * p.lse_stride_b + head * p.lse_stride_h + out_row * p.lse_stride_s;
    const MatC index = element_index();
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC sum;
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            sum[i] = l[r * ROWS + i];
        }
        sum = reduce(sum, true);
        if (WRITE_LSE) {
            [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                const uint row = uint(row0) + r * MAT_M + uint(index[i]) / MAT_N;
                if (uint(index[i]) % MAT_N == 0 && row < p.seq_q) {
                    const uint at = lse_base + row * p.lse_stride_s;
                    if (SPLIT_KV) {
                        lse_out[at] = m[r * ROWS + i / ROW_RUN];
                        lse_out[at + 1] = sum[i / ROW_RUN];
                    } else {
                        lse_out[at] = lse(m[r * ROWS + i / ROW_RUN], sum[i / ROW_RUN]);
                    }
                }
            }
        }
        [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
            [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                if (SPLIT_KV) {
                    const uint row = subgroup_row + r * MAT_M + uint(index[i]) / MAT_N;
                    const uint col = d * MAT_N + uint(index[i]) % MAT_N;
                    if (block_row + row < p.seq_q && col < HEAD_DIM) {
                        o32[o_base + row * p.o_stride_s + col] = O_[r * DIM_TILES + d][i];
                    }
                } else {
                    O_[r * DIM_TILES + d][i] *= inverse_sum(sum[i / ROW_RUN]);
                }
            }
        }
    }
    if (SPLIT_KV) {
        return;
    }
    [[unroll]] for (uint stage = 0; stage < STAGES; stage++) {
        barrier();  // the last key tile, or the columns before, are read
        [[unroll]] for (uint e = 0; e < STAGE_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * STAGE_TILES + e < DIM_TILES) {
                    coopMatStore(to_left(O_[r * DIM_TILES + stage * STAGE_TILES + e], false), tile,
                                 stage_at(subgroup_row + r * MAT_M, e), STAGE_LD, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        store_o(o_base, block_row, stage * STAGE_TILES);
    }
}

#endif
