// attention_bwd_dq_scalar: the gradient of Q in float32 arithmetic, for any Vulkan 1.2 device.
//
//     P   = exp(Scale * Q * K^T - LSE)      of the keys that a row sees, else 0
//     dX  = P * (dO * V^T - Delta)
//     dQ  = Scale * dX * K
//
//     q, dO, dq  (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v       (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     rows       (batch, num_heads, seq_q, 2)             f32, see attention_bwd_delta.comp
//
// A workgroup owns BLOCK_M rows of one head and walks over tiles of BLOCK_N keys, as
// attention_bwd_dkv_scalar.comp does with keys and rows. With FEATURES, the last axis of V
// and dO is value_dim long.
//
// Dispatch: (ceil(seq_q / BLOCK_M), num_heads, batch).
#version 450

layout(constant_id = 5) const uint STAGE_ROWS = 8;  // rows of K in shared memory at a time
layout(constant_id = 6) const uint HEAD_DIM = 64;
layout(constant_id = 7) const bool CAUSAL = false;
layout(constant_id = 8) const bool ALIGNED = true;  // offsets and strides are multiples of 4
layout(local_size_x_id = 0) in;

#define FEATURES_ID 9
#define FEATURES_BINDING 6
#define OWNS_KEYS false
#include "lib/bwd_scalar_inputs.glsl"

layout(binding = 5, scalar) writeonly buffer DQ { ELEM dq[]; };

#ifdef FEATURES
const bool WALKED_HIDES = KEY_MASK || BIAS;
#endif
#define TILE_ROWS BLOCK_M
#define TILE_KEYS BLOCK_N
#include "lib/bwd_scalar.glsl"

void main() {
    const uint ty = gl_LocalInvocationIndex / THREADS_X;
    const uint tx = gl_LocalInvocationIndex % THREADS_X;
    const uint head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    const uint kv_head = head / p.heads_per_kv;
    // The last rows see most keys under a causal mask: they come first.
    const uint row0 = (CAUSAL ? gl_NumWorkGroups.x - 1 - gl_WorkGroupID.x : gl_WorkGroupID.x) * BLOCK_M;
#ifdef FEATURES
    const Block block = enter_block(batch, head, row0, BLOCK_M);
    if (!block.exists) {
        return;
    }
#endif
    const uint count = min(BLOCK_M, p.seq_q - row0);
    const Part Q_ = Part(TENSOR_Q, HEAD_AT(q, batch, head) + row0 * p.q_stride_s, p.q_stride_s, count);
    const Part dO_ = Part(TENSOR_DO, HEAD_AT(do, batch, head) + row0 * p.do_stride_s, p.do_stride_s, count);
    const uint k_base = HEAD_AT(k, batch, kv_head);
    const uint v_base = HEAD_AT(v, batch, kv_head);
    const uint rows_base = rows_at(batch, head) + row0;

    vec2 lse2_delta[ROWS];
    int visible[ROWS];  // keys that the row sees
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = ty * ROWS + i;
        lse2_delta[i] = row < count ? rows[rows_base + row] : vec2(0.0);
        visible[i] = visible_keys(int(row0 + row));
    }
    TileNN dQ_;  // (ROWS, 4*COLS4)
    clear_gradient(dQ_);
    const int end = visible_keys(int(row0 + count) - 1);  // of the last row
    [[dont_unroll]] for (int col0 = 0; col0 < end; col0 += int(BLOCK_N)) {
#ifdef FEATURES
        fill_kept(block, row0, col0);
        if (WALKED_HIDES) {
            for (uint i = gl_LocalInvocationIndex; i < BLOCK_N; i += WORKGROUP_SIZE) {
                shown[i] = uint(has_value(block, min(col0 + i, last_key())));
            }
        }
#endif
        const uint keys = min(BLOCK_N, uint(end - col0));  // keys that no row sees may be NaN
        const Part K_ = Part(TENSOR_K, k_base + col0 * p.k_stride_s, p.k_stride_s, keys);
        const Part V_ = Part(TENSOR_V, v_base + col0 * p.v_stride_s, p.v_stride_s, keys);
        TileNT P, dX;  // (ROWS, COLS)
        product(P, Q_, K_);
        product(dX, dO_, V_);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            [[unroll]] for (uint j = 0; j < COLS; j++) {
                const uint at = i * COLS + j;
#ifdef FEATURES
                const int row = int(row0 + ty * ROWS + i);
                const uint col = tx + j * THREADS_X;
                const int key = col0 + int(col);
                const bool seen = in_window(row, key) && unmasked(block, min(uint(key), last_key()));
                dX.at[at] = weigh(block, P.at[at], dX.at[at], lse2_delta[i], row, key, seen, is_kept(ty * ROWS + i, col)).dX;
#else
                const bool seen = col0 + int(tx + j * THREADS_X) < visible[i];
                P.at[at] = seen ? exp2(fma(P.at[at], p.scale_log2, -lse2_delta[i].x)) : 0.0;
                dX.at[at] = seen ? P.at[at] * (dX.at[at] - lse2_delta[i].y) : 0.0;
#endif
            }
        }
        put_weights(dX);
        accumulate(dQ_, K_);
    }

    const float scale = PLAIN.scale_log2 * LN_2;
    const uint dq_base = HEAD_AT(dx, batch, head) + row0 * p.dx_stride_s;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = ty * ROWS + i;
        [[unroll]] for (uint j = 0; j < COLS4; j++) {
            const uint d = tx + j * THREADS_X;
            if (row < count && d < DIM4) {
                [[unroll]] for (uint e = 0; e < 4; e++) {
                    dq[dq_base + row * p.dx_stride_s + d * 4 + e] = NARROW(dQ_.at[i * COLS4 + j][e] * scale);
                }
            }
        }
    }
}
