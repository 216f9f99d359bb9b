// attention_unfused_values: the last of three steps of attention with the scores in memory.
//
//     O[h, i, d] = sum over j of P[h, i, j] * V[h', j, d]
//
//     o  (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     v  (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     p  (heads of the dispatch, seq_q, seq_kv)   f32
//
// With FEATURES, the last axis of O and V is value_dim long, and keys that masks
// hide from a block of rows are not read.
//
// Dispatch: (ceil(seq_q / BLOCK_M), 1, heads).
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 64;
layout(constant_id = 1) const uint THREADS_X = 8;
layout(constant_id = 2) const uint BLOCK_M = 32;
layout(constant_id = 3) const uint BLOCK_N = 16;  // keys in shared memory at a time
layout(constant_id = 4) const uint HEAD_DIM = 64;
layout(constant_id = 5) const bool ALIGNED = true;  // offsets and strides are multiples of 4
layout(local_size_x_id = 0) in;

#define FEATURES_ID 6
#define FEATURES_BINDING 3
#define A_OF_KEYS false
#include "lib/element.glsl"
#include "lib/params_unfused.glsl"

layout(binding = 0, scalar) writeonly buffer O { ELEM o[]; };
READ4(1, V, v)
layout(binding = 2, scalar) readonly buffer P { float weights[]; };

const uint THREADS_Y = WORKGROUP_SIZE / THREADS_X;
const uint ROWS = BLOCK_M / THREADS_Y;
const uint COLS = 1;  // product_nt is not used
const uint DIM4 = VALUE_DIM / 4;
const uint COLS4 = (DIM4 + THREADS_X - 1) / THREADS_X;
const uint P_LD = BLOCK_N / 4 + 1;  // one more, so that rows start in different banks
const uint V_LD = COLS4 * THREADS_X;
const uint V_AT = BLOCK_M * P_LD;
shared vec4 tile[V_AT + BLOCK_N * V_LD];

#include "lib/matmul_scalar.glsl"
#include "lib/features.glsl"

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint head = (p.first_head + gl_WorkGroupID.z) % p.num_heads;
    const uint batch = (p.first_head + gl_WorkGroupID.z) / p.num_heads;
    const uint row0 = gl_WorkGroupID.x * BLOCK_M;
#ifdef FEATURES
    const Block block = enter_block(batch, head, row0, BLOCK_M);
    if (!block.exists) {
        return;
    }
#endif
    const uint v_base = p.b_offset + batch * p.b_stride_b + head / p.heads_per_kv * p.b_stride_h;
    const uint o_base = HEAD_AT(a, batch, head);

    TileNN O_;  // (ROWS, 4*COLS4)
    [[unroll]] for (uint i = 0; i < ROWS * COLS4; i++) {
        O_.at[i] = vec4(0.0);
    }
    [[dont_unroll]] for (uint col0 = 0; col0 < p.seq_kv; col0 += BLOCK_N) {
        barrier();  // the keys before are read
        for (uint i = tid; i < BLOCK_M * BLOCK_N; i += WORKGROUP_SIZE) {
            const uint row = row0 + i / BLOCK_N;
            const uint col = col0 + i % BLOCK_N;
            float x = 0.0;
#ifdef FEATURES
            if (row < p.seq_q && in_window(int(row), int(col))) {
                x = weights[s2_row(row) + block.first_key + col];
            }
#else
            if (row < p.seq_q && col < p.seq_kv) {
                x = weights[(gl_WorkGroupID.z * p.seq_q + row) * p.seq_kv + col];
            }
#endif
            tile[i / BLOCK_N * P_LD + i % BLOCK_N / 4][i % 4] = x;
        }
        for (uint i = tid; i < BLOCK_N * V_LD; i += WORKGROUP_SIZE) {
            const uint row = col0 + i / V_LD;
            const uint d = i % V_LD;
#ifdef FEATURES
            const bool inside = row < p.seq_kv && d < DIM4 && has_value(block, min(row, last_key()));
            tile[V_AT + i] = inside ? load_v(v_base + row * p.b_stride_s + d * 4) : vec4(0.0);
#else
            tile[V_AT + i] = row < p.seq_kv && d < DIM4 ? load_v(v_base + row * p.b_stride_s + d * 4) : vec4(0.0);
#endif
        }
        barrier();  // tile written before it is read
        product_nn(O_, 0, P_LD, V_AT, V_LD, BLOCK_N / 4);
    }

    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = row0 + tid / THREADS_X * ROWS + i;
        [[unroll]] for (uint j = 0; j < COLS4; j++) {
            const uint d = tid % THREADS_X + j * THREADS_X;
            if (row < p.seq_q && d < DIM4) {
                [[unroll]] for (uint e = 0; e < 4; e++) {
                    o[o_base + row * p.a_stride_s + d * 4 + e] = NARROW(O_.at[i * COLS4 + j][e]);
                }
            }
        }
    }
}
