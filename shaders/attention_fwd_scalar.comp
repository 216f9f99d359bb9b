// attention_fwd_scalar: fused attention forward in float32 arithmetic, for any Vulkan 1.2 device.
//
//     S   = Scale * Q * K^T
//     P   = softmax(S) over the keys that a row sees
//     O   = P * V
//     LSE = log(sum(exp(S))) of each row
//
//     q, o  (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v  (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     lse   (batch, num_heads, seq_q)                f32, any strides
//
// A workgroup owns BLOCK_M rows of one head and walks over tiles of BLOCK_N keys with a
// running maximum m and sum l: Algorithm 1 of Dao, FlashAttention-2 (arXiv:2307.08691).
// Every value between load and store is a float32. It uses no subgroup operation.
//
// With FEATURES, lib/features.glsl changes scores, weights and sums, and the last axis of V
// and O is value_dim long. With QUANT, attention_quantize.comp has made Q and K.
//
// Dispatch: (ceil(seq_q / BLOCK_M), num_heads, batch). With SPLIT_KV x is multiplied by
// splits, and o and lse are the partial results of lib/split_kv.glsl.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint THREADS_X = 16;
layout(constant_id = 2) const uint BLOCK_M = 32;
layout(constant_id = 3) const uint BLOCK_N = 32;
layout(constant_id = 4) const uint DEPTH = 32;      // columns of Q and K in shared memory at a time
layout(constant_id = 5) const uint VALUE_ROWS = 8;  // rows of V in shared memory at a time
layout(constant_id = 6) const uint HEAD_DIM = 64;
layout(constant_id = 7) const bool CAUSAL = false;
layout(constant_id = 8) const bool ALIGNED = true;  // offsets and strides are multiples of 4
layout(constant_id = 9) const bool WRITE_LSE = true;
layout(constant_id = 10) const bool SPLIT_KV = false;  // writes partial results, see lib/split_kv.glsl
layout(local_size_x_id = 0) in;

#ifdef QUANT
layout(constant_id = 11) const uint FORMAT = 1;
#define FEATURES_ID 12
#define FEATURES_BINDING 7
#include "lib/quant_rows.glsl"
#else
#define FEATURES_ID 11
#define FEATURES_BINDING 5
#endif
#include "lib/element.glsl"
#include "lib/params_fwd.glsl"

#ifndef QUANT
READ4(0, Q, q)
READ4(1, K, k)
#endif
READ4(2, V, v)
layout(binding = 3, scalar) writeonly buffer O { ELEM o[]; };
layout(binding = 3, scalar) writeonly buffer O32 { float o32[]; };
layout(binding = 4, scalar) writeonly buffer LSE { float lse_out[]; };

const uint THREADS_Y = WORKGROUP_SIZE / THREADS_X;
const uint ROWS = BLOCK_M / THREADS_Y;                      // of S and O for one invocation
const uint COLS = BLOCK_N / THREADS_X;                      // of S
const uint DIM4 = HEAD_DIM / 4;                             // vec4 of one row
#ifdef FEATURES
const uint VALUE_DIM4 = VALUE_DIM / 4;                      // and of one row of V and O
#else
#define VALUE_DIM4 DIM4
#endif
const uint COLS4 = (VALUE_DIM4 + THREADS_X - 1) / THREADS_X;  // vec4 columns of O for one invocation
const uint QK_LD = DEPTH / 4 + 1;                           // one more, so that rows start in different banks
const uint P_LD = BLOCK_N / 4 + 1;
const uint V_LD = COLS4 * THREADS_X;

// Q and K chunks, and V chunks after them in time, share the first part.
const uint QK_SIZE = (BLOCK_M + BLOCK_N) * QK_LD;
const uint V_SIZE = VALUE_ROWS * V_LD;
const uint K_AT = BLOCK_M * QK_LD;
const uint P_AT = QK_SIZE > V_SIZE ? QK_SIZE : V_SIZE;
shared vec4 tile[P_AT + BLOCK_M * P_LD];
shared float partial[BLOCK_M * THREADS_X];  // one value for each row and invocation of its row

#include "lib/softmax.glsl"
#include "lib/mask.glsl"
#include "lib/order.glsl"
#include "lib/split_kv.glsl"
#include "lib/matmul_scalar.glsl"
#include "lib/row_values.glsl"
#include "lib/fwd_features.glsl"
#include "lib/dropout.glsl"

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint ty = tid / THREADS_X;
    const uint tx = tid % THREADS_X;
    const Work work = next_work();
    const uint head = work.head;
    const uint batch = work.batch;
    const uint kv_head = work.kv_head;
    const uint row0 = work.block * BLOCK_M;
    const Block block = enter_block(batch, head, row0, BLOCK_M);
    if (!block.exists) {
        return;
    }

    const uint q_base = HEAD_AT(q, batch, head) + row0 * p.q_stride_s;
    const uint k_base = HEAD_AT(k, batch, kv_head);
    const uint v_base = HEAD_AT(v, batch, kv_head);
    const float sign = p.q_sign != 0 ? -1.0 : 1.0;

    TileNN O_;      // (ROWS, 4*COLS4)
    float m[ROWS];  // running maximum, base 2
    RowValues l;    // this invocation's part of the row's sum
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        m[i] = MAX_INIT;
        l.at[i] = 0.0;
        [[unroll]] for (uint j = 0; j < COLS4; j++) {
            O_.at[i * COLS4 + j] = vec4(0.0);
        }
    }

    const int keys = visible_keys(int(min(row0 + BLOCK_M, p.seq_q)) - 1);  // what the last row sees
    const int end_key = split_end(work.split, keys);
    [[dont_unroll]] for (int col0 = split_first(work.split, keys); col0 < end_key; col0 += int(BLOCK_N)) {
        fill_kept(block, row0, col0);
        TileNT S;  // (ROWS, COLS)
        [[unroll]] for (uint i = 0; i < ROWS * COLS; i++) {
            S.at[i] = 0.0;
        }
        [[dont_unroll]] for (uint d0 = 0; d0 < DIM4; d0 += DEPTH / 4) {
            barrier();  // the chunk before, or V, is read
            for (uint i = tid; i < (BLOCK_M + BLOCK_N) * (DEPTH / 4); i += WORKGROUP_SIZE) {
                const uint row = i / (DEPTH / 4);
                const uint d = i % (DEPTH / 4);
                vec4 x = vec4(0.0);  // rows and columns outside the tensors
                if (d0 + d < DIM4) {
                    if (row < BLOCK_M) {
                        if (row0 + row < p.seq_q) {
                            x = sign * load_q(q_base + row * p.q_stride_s + (d0 + d) * 4);
                        }
                    } else if (col0 + row - BLOCK_M < p.seq_kv) {
                        x = load_k(k_base + (col0 + row - BLOCK_M) * p.k_stride_s + (d0 + d) * 4);
                    }
                }
                tile[row * QK_LD + d] = x;
            }
            barrier();  // tile written before it is read
            product_nt(S, 0, K_AT, QK_LD, DEPTH / 4);
        }

#ifdef QUANT
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const float scale = q_rows[(q_base + (ty * ROWS + i) * p.q_stride_s) / ROW_BYTES].x;
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                S.at[i * COLS + j] *= scale * k_scales[(k_base + (col0 + tx + j * THREADS_X) * p.k_stride_s) / ROW_BYTES];
            }
        }
#endif
        RowValues row_max;
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            row_max.at[i] = NEG_INF;
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                S.at[i * COLS + j] = masked_score(block, S.at[i * COLS + j], int(row0 + ty * ROWS + i), col0 + int(tx + j * THREADS_X));
                row_max.at[i] = max(row_max.at[i], S.at[i * COLS + j]);
            }
        }
        share_partials(row_max, ty, tx);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            float m_new = m[i];
            for (uint x = 0; x < THREADS_X; x++) {
                m_new = max(m_new, partial[(ty * ROWS + i) * THREADS_X + x] * p.scale_log2);
            }
            const float alpha = exp2(m[i] - m_new);
            m[i] = m_new;
            l.at[i] *= alpha;
            [[unroll]] for (uint j = 0; j < COLS4; j++) {
                O_.at[i * COLS4 + j] *= alpha;
            }
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                float weight = exp2(fma(S.at[i * COLS + j], p.scale_log2, -m_new));
                l.at[i] += weight;
                const uint col = tx + j * THREADS_X;
                weight = is_kept(ty * ROWS + i, col) ? weight : 0.0;
                tile[P_AT + (ty * ROWS + i) * P_LD + col / 4][col % 4] = weight;
            }
        }

        [[dont_unroll]] for (uint n0 = 0; n0 < BLOCK_N; n0 += VALUE_ROWS) {
            barrier();  // Q and K, or the rows of V before, are read
            for (uint i = tid; i < VALUE_ROWS * V_LD; i += WORKGROUP_SIZE) {
                const uint row = col0 + n0 + i / V_LD;
                const uint d = i % V_LD;
                const bool inside = row < p.seq_kv && d < VALUE_DIM4 && has_value(block, min(row, last_key()));
                tile[i] = inside ? load_v(v_base + row * p.v_stride_s + d * 4) : vec4(0.0);
            }
            barrier();  // V and P written before they are read
            product_nn(O_, P_AT + n0 / 4, P_LD, 0, V_LD, VALUE_ROWS / 4);
        }
    }

    share_partials(l, ty, tx);
    const uint out_row = work.split * p.seq_q;  // where the rows of the head begin
    const uint o_base = HEAD_AT(o, batch, head) + out_row * p.o_stride_s;
    const uint lse_base = HEAD_AT(lse, batch, head) + out_row * p.lse_stride_s;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = row0 + ty * ROWS + i;
        float sum = 0.0;
        for (uint x = 0; x < THREADS_X; x++) {
            sum += partial[(ty * ROWS + i) * THREADS_X + x];
        }
        if (row >= p.seq_q) {
            continue;
        }
#ifdef QUANT
        m[i] += q_rows[(q_base + (ty * ROWS + i) * p.q_stride_s) / ROW_BYTES].y;
#endif
        const float inverse = finish_row(block, m[i], sum);
        [[unroll]] for (uint j = 0; j < COLS4; j++) {
            const uint d = tx + j * THREADS_X;
            if (d < VALUE_DIM4) {
                [[unroll]] for (uint e = 0; e < 4; e++) {
                    const uint at = o_base + row * p.o_stride_s + d * 4 + e;
                    if (SPLIT_KV) {
                        o32[at] = O_.at[i * COLS4 + j][e];
                    } else {
                        o[at] = NARROW(O_.at[i * COLS4 + j][e] * inverse);
                    }
                }
            }
        }
        if (WRITE_LSE && tx == 0) {
            put_lse(lse_base + row * p.lse_stride_s, m[i], sum);
        }
    }
}
