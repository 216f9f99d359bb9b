// fwd_direct: the algorithm of attention_fwd_direct.comp.
//
// STRIPES subgroups share the keys of SUBGROUP_ROWS rows: each takes every STRIPES-th tile of
// BLOCK_N keys, from the last that a row sees to the first, so that the tiles with a mask come
// first, and that subgroups with other rows, which see other last keys, begin with other tiles, all
// of which are on their way at once. A subgroup keeps Q, S, P, O and a tile's K and V in registers:
//
//     for each key tile:  S = Q K^T;  K of the next tile is loaded
//                         m' = max(m, rowmax S);  P = exp2(S * scale - m');  l, O *= exp2(m - m')
//                         l += rowsum P;  O += P V;  V of the next tile is loaded
//
// m' lags behind as in lib/fwd_matrix.glsl. Then the stripes' sums are added up in shared memory.

#include "softmax.glsl"
#include "mask.glsl"
#include "order.glsl"
#include "direct_operands.glsl"
const float HEADROOM = 0.0;  // m of a row is its maximum
#include "scores.glsl"
#include "direct_sums.glsl"

void forward() {
    const Work work = next_work();
    const uint block_row = work.block * BLOCK_M;
    const uint row0 = block_row + gl_SubgroupID / STRIPES * SUBGROUP_ROWS;  // first row of this subgroup
    const int end_key = row0 < p.seq_q ? max(visible_keys(int(min(row0 + SUBGROUP_ROWS, p.seq_q)) - 1), 0) : 0;
    int tile = (end_key + int(BLOCK_N) - 1) / int(BLOCK_N) - 1 - int(gl_SubgroupID % STRIPES);

    const uint k_base = HEAD_AT(k, work.batch, work.kv_head);
    const uint v_base = HEAD_AT(v, work.batch, work.kv_head);
    const uint q_base = HEAD_AT(q, work.batch, work.head);
    const MatC index = element_index();
    Keys k;
    Values v;
    MatA Q_[ROW_TILES * DIM_TILES];  // (SUBGROUP_ROWS, head_dim)
    if (tile >= 0) {
        load_keys(k_base, tile * int(BLOCK_N), k);
    }
    if (QUADS) {
        uvec4 q[ROW_TILES * 2 * K_LOADS];
        [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
            const uint at = q_base + min(row0 + i * 8 + lane_g(), p.seq_q - 1) * p.q_stride_s;
            [[unroll]] for (uint w = 0; w < K_LOADS; w++) {
                const uint col = w * 32 + lane_t() * 8;
                const bool has = HEAD_DIM % 32 == 0 || col < HEAD_DIM;
                const uvec4 x = load_q(at + (has ? col : 0)) ^ p.q_sign;
                q[i * K_LOADS + w] = has ? x : uvec4(0);
            }
        }
        if (tile >= 0) {
            load_values(v_base, tile * int(BLOCK_N), v);
        }
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                [[unroll]] for (uint i = 0; i < 2; i++) {
                    const uvec4 x = q[(r * 2 + i) * K_LOADS + d / 2];
                    set_left(Q_[r * DIM_TILES + d], 2 * i, x[d % 2 * 2]);
                    set_left(Q_[r * DIM_TILES + d], 2 * i + 1, x[d % 2 * 2 + 1]);
                }
            }
        }
    } else {
        [[unroll]] for (uint i = 0; i < ROW_TILES * DIM_TILES; i++) {
            const uint row = min(row0 + i / DIM_TILES * MAT_M, p.seq_q - 1);
            Q_[i] = left_elements(index, q_base + row * p.q_stride_s, p.seq_q - row, i % DIM_TILES);
        }
    }

    Sums sums;
    [[unroll]] for (uint i = 0; i < ROW_TILES * ROWS; i++) {
        sums.rows[i] = new_row();
    }
    [[unroll]] for (uint i = 0; i < ROW_TILES * VALUE_TILES; i++) {
        sums.o[i] = MatC(0.0);
    }

    [[dont_unroll]] for (; tile >= 0; tile -= int(STRIPES)) {
        const int col0 = tile * int(BLOCK_N);
        const int next0 = col0 - int(STRIPES * BLOCK_N);
        Scores S;
        [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                S.at[r * COL_TILES + n] = MatC(0.0);
            }
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                const MatB kt = key_operand(k, index, k_base, col0, n, d);
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r * COL_TILES + n] = coopMatMulAdd(Q_[r * DIM_TILES + d], kt, S.at[r * COL_TILES + n]);
                }
            }
        }
        if (next0 >= 0) {
            load_keys(k_base, next0, k);
        }
        if (col0 + int(BLOCK_N) > visible_keys(int(row0))) {  // not if all rows see the tile
            hide_keys(S, int(row0), col0);
        }

#define rows sums.rows
#define O_ sums.o
#include "fwd_rescale.glsl"
#undef rows
#undef O_

        [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
            MatA P[ROW_TILES];  // (SUBGROUP_ROWS, MAT_N)
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                MatC weight;
                [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                    weight[i] = weight_of(sums.rows[r * ROWS + i / ROW_RUN], S.at[r * COL_TILES + n][i]);
                    sums.rows[r * ROWS + i / ROW_RUN].l += weight[i];
                }
                P[r] = to_left(weight, true);
            }
            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                const MatB b = value_operand(v, index, v_base, col0, n, d);
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    sums.o[r * VALUE_TILES + d] = coopMatMulAdd(P[r], b, sums.o[r * VALUE_TILES + d]);
                }
            }
        }
        if (next0 >= 0) {
            load_values(v_base, next0, v);
        }
    }

    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC whole;
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            whole[i] = sums.rows[r * ROWS + i].l;
        }
        whole = reduce(whole, true);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            sums.rows[r * ROWS + i].l = whole[i];
        }
    }
    const uint o_base = HEAD_AT(o, work.batch, work.head);
    const uint lse_base = HEAD_AT(lse, work.batch, work.head);
    if (STRIPES == 1) {
        store_rows(sums, index, o_base + row0 * p.o_stride_s, lse_base + row0 * p.lse_stride_s, row0);
    } else {
        combine_stripes(sums, index, o_base + block_row * p.o_stride_s, lse_base + block_row * p.lse_stride_s, block_row);
    }
}
