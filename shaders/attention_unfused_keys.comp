// attention_unfused_keys: the gradients of keys in the backward pass with weights in
// memory: dV from W and dO, or dK from dX and Q.
//
//     dX[h', j, d] = sum over i and the heads h that read key head h' of W[h, i, j] * X[h, i, d]
//
//     dx  (batch, num_kv_heads, seq_kv, DIM)  ELEM, any strides, last axis contiguous
//     x   (batch, num_heads, seq_q, DIM)      ELEM, likewise
//     w   (heads of the dispatch, seq_q, seq_kv)  f32
//
// With FEATURES, weights of rows that do not see a key, by its position, are not read.
//
// Dispatch: (ceil(seq_kv / BLOCK_M), 1, key heads): from the key head of first_head on, all heads
// of a group.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint THREADS_X = 16;
layout(constant_id = 2) const uint BLOCK_M = 32;  // keys
layout(constant_id = 3) const uint BLOCK_N = 8;   // rows in shared memory at a time
layout(constant_id = 4) const uint DIM = 64;
layout(constant_id = 5) const bool ALIGNED = true;  // offsets and strides are multiples of 4
layout(local_size_x_id = 0) in;

#define FEATURES_ID 6
#define FEATURES_BINDING 3
#define A_OF_KEYS true
#include "lib/element.glsl"
#include "lib/params_unfused.glsl"

layout(binding = 0, scalar) writeonly buffer DX { ELEM dx[]; };
READ4(1, X, x)
layout(binding = 2, scalar) readonly buffer W { float weights[]; };

const uint THREADS_Y = WORKGROUP_SIZE / THREADS_X;
const uint ROWS = BLOCK_M / THREADS_Y;  // keys of one invocation
const uint COLS = 1;                    // product_nt is not used
const uint DIM4 = DIM / 4;
const uint COLS4 = (DIM4 + THREADS_X - 1) / THREADS_X;
const uint W_LD = BLOCK_N / 4 + 1;  // one more, so that rows start in different banks
const uint X_LD = COLS4 * THREADS_X;
const uint X_AT = BLOCK_M * W_LD;
shared vec4 tile[X_AT + BLOCK_N * X_LD];

#include "lib/matmul_scalar.glsl"
#include "lib/features.glsl"

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint number = p.first_head + gl_WorkGroupID.z * p.heads_per_kv;  // of the group's first head
    const uint first_head = number % p.num_heads;
    const uint batch = number / p.num_heads;
    const uint col0 = gl_WorkGroupID.x * BLOCK_M;
    const uint w_ld = p.seq_kv;
    const uint w_head = p.seq_q * p.seq_kv;
    uint first_row = 0;
#ifdef FEATURES
    first_row = enter_keys(batch, col0, BLOCK_M);
    if (col0 >= p.seq_kv) {
        return;
    }
#endif
    TileNN dX_;  // (ROWS, 4*COLS4)
    [[unroll]] for (uint i = 0; i < ROWS * COLS4; i++) {
        dX_.at[i] = vec4(0.0);
    }
    [[dont_unroll]] for (uint g = 0; g < p.heads_per_kv; g++) {
        const uint w_base = (gl_WorkGroupID.z * p.heads_per_kv + g) * w_head;
        const uint x_base = HEAD_AT(b, batch, first_head + g);
        [[dont_unroll]] for (uint row0 = first_row; row0 < p.seq_q; row0 += BLOCK_N) {
            barrier();  // the rows before are read
            for (uint i = tid; i < BLOCK_M * BLOCK_N; i += WORKGROUP_SIZE) {
                const uint row = row0 + i / BLOCK_M;
                const uint col = col0 + i % BLOCK_M;
                bool inside = row < p.seq_q && col < p.seq_kv;
#ifdef FEATURES
                inside = inside && in_window(int(row), int(col));
#endif
                tile[i % BLOCK_M * W_LD + i / BLOCK_M / 4][i / BLOCK_M % 4] = inside ? weights[w_base + row * w_ld + col] : 0.0;
            }
            for (uint i = tid; i < BLOCK_N * X_LD; i += WORKGROUP_SIZE) {
                const uint row = row0 + i / X_LD;
                const uint d = i % X_LD;
                tile[X_AT + i] = row < p.seq_q && d < DIM4 ? load_x(x_base + row * p.b_stride_s + d * 4) : vec4(0.0);
            }
            barrier();  // tile written before it is read
            product_nn(dX_, 0, W_LD, X_AT, X_LD, BLOCK_N / 4);
        }
    }

    const uint base = p.a_offset + batch * p.a_stride_b + first_head / p.heads_per_kv * p.a_stride_h;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint key = col0 + tid / THREADS_X * ROWS + i;
        [[unroll]] for (uint j = 0; j < COLS4; j++) {
            const uint d = tid % THREADS_X + j * THREADS_X;
            if (key < p.seq_kv && d < DIM4) {
                [[unroll]] for (uint e = 0; e < 4; e++) {
                    dx[base + key * p.a_stride_s + d * 4 + e] = NARROW(dX_.at[i * COLS4 + j][e]);
                }
            }
        }
    }
}
