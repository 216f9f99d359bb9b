// attention_unfused_bwd_scores: the first step of the backward pass with weights in
// memory, which PyTorch calls MATH.
//
//     W[h, i, j]  = exp(Scale * Q * K^T - LSE)      of the keys that a row sees, else 0
//     dX[h, i, j] = Scale * W * (dO * V^T - Delta)
//
//     q, dO  (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v   (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     rows   (batch, num_heads, seq_q, 2)             f32, see attention_bwd_delta.comp
//     w, dx  (heads of the dispatch, seq_q, seq_kv)   f32
//
// The other steps are attention_unfused_values.comp, dQ = dX * K, and
// attention_unfused_keys.comp, dK = dX^T * Q and dV = W^T * dO.
//
// With FEATURES, lib/feature_gradients.glsl changes W and dX, W includes the scale of
// dropout, blocks of rows and keys without a visible key are not written, and the last axis
// of V and dO is value_dim long.
//
// Dispatch: (ceil(seq_kv / BLOCK_N), ceil(seq_q / BLOCK_M), heads).
#version 450

layout(constant_id = 5) const uint HEAD_DIM = 64;
layout(constant_id = 6) const bool CAUSAL = false;
layout(constant_id = 7) const bool ALIGNED = true;  // offsets and strides are multiples of 4
layout(local_size_x_id = 0) in;

const uint STAGE_ROWS = 4;  // of accumulate, which is not used
#define FEATURES_ID 8
#define FEATURES_BINDING 7
#define BY_HEAD
#include "lib/bwd_scalar_inputs.glsl"

layout(binding = 5, scalar) writeonly buffer W { float w[]; };
layout(binding = 6, scalar) writeonly buffer DX { float dx[]; };

#define WALKED_HIDES false
#define TILE_ROWS BLOCK_M
#define TILE_KEYS BLOCK_N
#include "lib/bwd_scalar.glsl"

void main() {
    const uint ty = gl_LocalInvocationIndex / THREADS_X;
    const uint tx = gl_LocalInvocationIndex % THREADS_X;
    const uint head = (p.first + gl_WorkGroupID.z) % num_heads();
    const uint batch = (p.first + gl_WorkGroupID.z) / num_heads();
    const uint kv_head = head / p.heads_per_kv;
    const uint row0 = gl_WorkGroupID.y * BLOCK_M;
    const uint col0 = gl_WorkGroupID.x * BLOCK_N;
    uint w_base = gl_WorkGroupID.z * p.seq_q * p.seq_kv;
    const uint w_ld = p.seq_kv;
#ifdef FEATURES
    const Block block = enter_block(batch, head, row0, BLOCK_M);
    if (!block.exists || col0 >= p.seq_kv) {
        return;
    }
    w_base += block.first_key;
    fill_kept(block, row0, col0);
    const float scale = args.plain.scale_log2 * LN_2;
#else
    const float scale = p.scale_log2 * LN_2;
#endif
    const uint count = min(BLOCK_M, p.seq_q - row0);
    const uint keys = min(BLOCK_N, p.seq_kv - col0);
    const Part Q_ = Part(TENSOR_Q, HEAD_AT(q, batch, head) + row0 * p.q_stride_s, p.q_stride_s, count);
    const Part dO_ = Part(TENSOR_DO, HEAD_AT(do, batch, head) + row0 * p.do_stride_s, p.do_stride_s, count);
    const Part K_ = Part(TENSOR_K, HEAD_AT(k, batch, kv_head) + col0 * p.k_stride_s, p.k_stride_s, keys);
    const Part V_ = Part(TENSOR_V, HEAD_AT(v, batch, kv_head) + col0 * p.v_stride_s, p.v_stride_s, keys);
    const uint rows_base = rows_at(batch, head) + row0;
    TileNT S, dP;  // (ROWS, COLS)
    product(S, Q_, K_);
    product(dP, dO_, V_);
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = ty * ROWS + i;
        const vec2 lse2_delta = row < count ? rows[rows_base + row] : vec2(0.0);
        const int visible = visible_keys(int(row0 + row));
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            const uint col = tx + j * THREADS_X;
            const int key = int(col0 + col);
#ifdef FEATURES
            const bool seen = in_window(int(row0 + row), key) && unmasked(block, min(uint(key), last_key()));
            const Weighed x = weigh(block, S.at[i * COLS + j], dP.at[i * COLS + j], lse2_delta, int(row0 + row), key, seen, is_kept(row, col));
            const float weight = x.P * keep_scale();
            const float gradient = x.dX * scale;
#else
            const bool seen = key < visible;  // else K and V may be NaN
            const float weight = seen ? exp2(fma(S.at[i * COLS + j], p.scale_log2, -lse2_delta.x)) : 0.0;
            const float gradient = seen ? weight * (dP.at[i * COLS + j] - lse2_delta.y) * scale : 0.0;
#endif
            if (row < count && col < keys) {
                const uint at = w_base + (row0 + row) * w_ld + uint(key);
                w[at] = weight;
                dx[at] = gradient;
            }
        }
    }
}
