// attention_bwd_dkv_scalar: the gradients of K and V in float32 arithmetic, for any
// Vulkan 1.2 device.
//
//     P   = exp(Scale * Q * K^T - LSE)      of the keys that a row sees, else 0
//     dX  = P * (dO * V^T - Delta)
//     dV  = P^T * dO                        summed over the heads that read the key head
//     dK  = Scale * dX^T * Q                likewise
//
//     q, dO         (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v, dk, dv  (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     rows          (batch, num_heads, seq_q, 2)             f32, see attention_bwd_delta.comp
//
// A workgroup owns BLOCK_M keys of one key head and walks over the heads of its group and
// tiles of BLOCK_N rows: the inner loop of Algorithm 2 of Dao, FlashAttention-2
// (arXiv:2307.08691). attention_bwd_dq_scalar.comp computes dQ, so that no two workgroups
// add to the same element. Every value between load and store is a float32.
//
// With FEATURES, lib/feature_gradients.glsl changes weights and the gradients of scores, and
// the last axis of V, dV and dO is value_dim long.
//
// Dispatch: (ceil(seq_kv / BLOCK_M), num_kv_heads, batch).
#version 450

layout(constant_id = 5) const uint STAGE_ROWS = 8;  // rows of Q and dO in shared memory at a time
layout(constant_id = 6) const uint HEAD_DIM = 64;
layout(constant_id = 7) const bool CAUSAL = false;
layout(constant_id = 8) const bool ALIGNED = true;  // offsets and strides are multiples of 4
layout(local_size_x_id = 0) in;

#define FEATURES_ID 9
#define FEATURES_BINDING 7
#define OWNS_KEYS true
#include "lib/bwd_scalar_inputs.glsl"

layout(binding = 5, scalar) writeonly buffer DK { ELEM dk[]; };
layout(binding = 6, scalar) writeonly buffer DV { ELEM dv[]; };

#define WALKED_HIDES false
#define TILE_ROWS BLOCK_N
#define TILE_KEYS BLOCK_M
#include "lib/bwd_scalar.glsl"

void main() {
    const uint ty = gl_LocalInvocationIndex / THREADS_X;
    const uint tx = gl_LocalInvocationIndex % THREADS_X;
    const uint kv_head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    const uint col0 = gl_WorkGroupID.x * BLOCK_M;
#ifdef FEATURES
    const uint first_row = enter_keys(batch, col0, BLOCK_M);
    if (col0 >= p.seq_kv) {
        return;
    }
#endif
    const uint keys = min(BLOCK_M, p.seq_kv - col0);
    const Part K_ = Part(TENSOR_K, HEAD_AT(k, batch, kv_head) + col0 * p.k_stride_s, p.k_stride_s, keys);
    const Part V_ = Part(TENSOR_V, HEAD_AT(v, batch, kv_head) + col0 * p.v_stride_s, p.v_stride_s, keys);

    TileNN dK_, dV_;  // (ROWS, 4*COLS4)
    clear_gradient(dK_);
    clear_gradient(dV_);
#ifdef FEATURES
    const Block first_head = new_block(batch, kv_head * p.heads_per_kv, 0);
    bool unhidden[ROWS];  // by the key mask, the same for all heads
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint key = ty * ROWS + i;
        unhidden[i] = key < keys && unmasked(first_head, col0 + key);
    }
#else
    // The first row that sees the first key of the block, in whole tiles.
    const uint first_row = CAUSAL ? uint(max(int(col0) - p.causal_shift, 0)) / BLOCK_N * BLOCK_N : 0;
#endif
    [[dont_unroll]] for (uint h = 0; h < p.heads_per_kv; h++) {
        const uint head = kv_head * p.heads_per_kv + h;
        const uint q_base = HEAD_AT(q, batch, head);
        const uint do_base = HEAD_AT(do, batch, head);
        const uint rows_base = rows_at(batch, head);
#ifdef FEATURES
        const Block block = new_block(batch, head, 0);
#endif
        [[dont_unroll]] for (uint row0 = first_row; row0 < p.seq_q; row0 += BLOCK_N) {
            fill_kept(block, row0, col0);
            const uint count = min(BLOCK_N, p.seq_q - row0);
            const Part Q_ = Part(TENSOR_Q, q_base + row0 * p.q_stride_s, p.q_stride_s, count);
            const Part dO_ = Part(TENSOR_DO, do_base + row0 * p.do_stride_s, p.do_stride_s, count);
            TileNT P, dX;  // (ROWS, COLS), transposed: keys by rows
            product(P, K_, Q_);
            product(dX, V_, dO_);
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                const uint row = row0 + tx + j * THREADS_X;
#ifdef FEATURES
                const vec2 lse2_delta = row < p.seq_q ? rows[rows_base + row] : vec2(0.0);
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    const uint at = i * COLS + j;
                    const int key = int(col0 + ty * ROWS + i);
                    const bool seen = row < p.seq_q && unhidden[i] && in_window(int(row), key);
                    const Weighed x = weigh(block, P.at[at], dX.at[at], lse2_delta, int(row), key, seen, is_kept(row - row0, ty * ROWS + i));
                    P.at[at] = x.P;
                    dX.at[at] = x.dX;
                }
#else
                const vec2 lse2_delta = row < p.seq_q ? rows[rows_base + row] : vec2(0.0);
                const int visible = row < p.seq_q ? visible_keys(int(row)) : 0;
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    const uint at = i * COLS + j;
                    const bool seen = int(col0 + ty * ROWS + i) < visible;  // else K and V may be NaN
                    P.at[at] = seen ? exp2(fma(P.at[at], p.scale_log2, -lse2_delta.x)) : 0.0;
                    dX.at[at] = seen ? P.at[at] * (dX.at[at] - lse2_delta.y) : 0.0;
                }
#endif
            }
            put_weights(P);
            accumulate(dV_, dO_);
            barrier();  // the weights are read
            put_weights(dX);
            accumulate(dK_, Q_);
        }
    }

    const float scale = PLAIN.scale_log2 * LN_2;
    const uint dk_base = HEAD_AT(dx, batch, kv_head) + col0 * p.dx_stride_s;
    const uint dv_base = HEAD_AT(dv, batch, kv_head) + col0 * p.dv_stride_s;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint key = ty * ROWS + i;
        [[unroll]] for (uint j = 0; j < COLS4; j++) {
            const uint d = tx + j * THREADS_X;
#ifdef FEATURES
            [[unroll]] for (uint e = 0; e < 4; e++) {
                if (key < keys && d < DIM4) {
                    dk[dk_base + key * p.dx_stride_s + d * 4 + e] = NARROW(dK_.at[i * COLS4 + j][e] * scale);
                }
                if (key < keys && d < VALUE_DIM4) {
                    dv[dv_base + key * p.dv_stride_s + d * 4 + e] = NARROW(dV_.at[i * COLS4 + j][e] * keep_scale());
                }
            }
#else
            if (key < keys && d < DIM4) {
                [[unroll]] for (uint e = 0; e < 4; e++) {
                    dk[dk_base + key * p.dx_stride_s + d * 4 + e] = NARROW(dK_.at[i * COLS4 + j][e] * scale);
                    dv[dv_base + key * p.dv_stride_s + d * 4 + e] = NARROW(dV_.at[i * COLS4 + j][e]);
                }
            }
#endif
        }
    }
}
