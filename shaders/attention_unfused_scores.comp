// attention_unfused_scores: the first of three steps of attention with the
// scores in memory, which PyTorch calls MATH.
//
//     S2[h, i, j] = Scale * log2(e) * sum over d of Q[h, i, d] * K[h', j, d]
//     S2[h, i, j] = -Inf where row i does not see key j
//
//     q   (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k   (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     s2  (heads of the dispatch, seq_q, seq_kv)   f32, base-2 logits
//
// With FEATURES, lib/features.glsl changes scores. Blocks of rows and keys without a
// visible score are not written.
//
// Dispatch: (ceil(seq_kv / BLOCK_N), ceil(seq_q / BLOCK_M), heads).
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 64;
layout(constant_id = 1) const uint THREADS_X = 8;
layout(constant_id = 2) const uint BLOCK_M = 32;
layout(constant_id = 3) const uint BLOCK_N = 32;
layout(constant_id = 4) const uint DEPTH = 32;  // columns of Q and K in shared memory at a time
layout(constant_id = 5) const uint HEAD_DIM = 64;
layout(constant_id = 6) const bool CAUSAL = false;
layout(constant_id = 7) const bool ALIGNED = true;  // offsets and strides are multiples of 4
layout(local_size_x_id = 0) in;

#define FEATURES_ID 8
#define FEATURES_BINDING 3
#define A_OF_KEYS false
#include "lib/element.glsl"
#include "lib/params_unfused.glsl"

READ4(0, Q, q)
READ4(1, K, k)
layout(binding = 2, scalar) writeonly buffer S2 { float s2[]; };

const uint THREADS_Y = WORKGROUP_SIZE / THREADS_X;
const uint ROWS = BLOCK_M / THREADS_Y;
const uint COLS = BLOCK_N / THREADS_X;
const uint COLS4 = 1;  // product_nn is not used
const uint DIM4 = HEAD_DIM / 4;
const uint LD = DEPTH / 4 + 1;  // one more, so that rows start in different banks
const uint K_AT = BLOCK_M * LD;
shared vec4 tile[(BLOCK_M + BLOCK_N) * LD];

#include "lib/softmax.glsl"
#include "lib/mask.glsl"
#include "lib/features.glsl"
#include "lib/matmul_scalar.glsl"

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint head = (p.first_head + gl_WorkGroupID.z) % p.num_heads;
    const uint batch = (p.first_head + gl_WorkGroupID.z) / p.num_heads;
    const uint row0 = gl_WorkGroupID.y * BLOCK_M;
    const uint col0 = gl_WorkGroupID.x * BLOCK_N;
#ifdef FEATURES
    const Block block = enter_block(batch, head, row0, BLOCK_M);
    if (!block.exists || col0 >= p.seq_kv) {
        return;
    }
#endif
    const uint q_base = HEAD_AT(a, batch, head);
    const uint k_base = p.b_offset + batch * p.b_stride_b + head / p.heads_per_kv * p.b_stride_h;

    TileNT S;  // (ROWS, COLS)
    [[unroll]] for (uint i = 0; i < ROWS * COLS; i++) {
        S.at[i] = 0.0;
    }
    [[dont_unroll]] for (uint d0 = 0; d0 < DIM4; d0 += DEPTH / 4) {
        barrier();  // the chunk before is read
        for (uint i = tid; i < (BLOCK_M + BLOCK_N) * (DEPTH / 4); i += WORKGROUP_SIZE) {
            const uint row = i / (DEPTH / 4);
            const uint d = d0 + i % (DEPTH / 4);
            vec4 x = vec4(0.0);  // rows and columns outside the tensors
            if (d < DIM4) {
                if (row < BLOCK_M) {
                    if (row0 + row < p.seq_q) {
                        x = load_q(q_base + (row0 + row) * p.a_stride_s + d * 4);
                    }
                } else if (col0 + row - BLOCK_M < p.seq_kv) {
                    x = load_k(k_base + (col0 + row - BLOCK_M) * p.b_stride_s + d * 4);
                }
            }
            tile[row * LD + i % (DEPTH / 4)] = x;
        }
        barrier();  // tile written before it is read
        product_nt(S, 0, K_AT, LD, DEPTH / 4);
    }

    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = row0 + tid / THREADS_X * ROWS + i;
        const int keys = visible_keys(int(row));
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            const uint col = col0 + tid % THREADS_X + j * THREADS_X;
            if (row < p.seq_q && col < p.seq_kv) {
#ifdef FEATURES
                s2[s2_row(row) + block.first_key + col] = masked_score(block, S.at[i * COLS + j], int(row), int(col));
#else
                s2[(gl_WorkGroupID.z * p.seq_q + row) * p.seq_kv + col] = int(col) < keys ? S.at[i * COLS + j] * p.scale_log2 : NEG_INF;
#endif
            }
        }
    }
}
