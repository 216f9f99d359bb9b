// attention_bwd_dbias: the gradient of a bias, in float32 arithmetic, for any Vulkan 1.2 device.
//
//     dBias = sum of dS over the batches, heads and rows that share an element of the bias
//     dS    = P * (dP * Z - Delta)           see lib/feature_gradients.glsl
//
//     q, dO  (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v   (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise; V and dO are value_dim long
//     rows   (batch, num_heads, seq_q, 2)             f32, see attention_bwd_delta.comp
//     out    (batch or 1, num_heads or 1, seq_q, seq_kv)  the bias's format, any strides
//     with SUM_ROWS: (batch, num_heads, seq_kv)       f32, any strides
//
// A workgroup owns a tile of BLOCK_M rows and BLOCK_N keys of the bias. It recomputes S and dP
// and adds dS of all heads and batches that share the tile, one after the other: no two
// workgroups add to the same element. With SUM_ROWS a tile has one head and all its rows,
// and attention_bwd_sum.comp adds heads and batches.
//
// Dispatch: (ceil(seq_kv / BLOCK_N), ceil(seq_q / BLOCK_M) or 1 with SUM_ROWS, heads of out in
// all its batches).
#version 450

layout(constant_id = 5) const uint HEAD_DIM = 64;
layout(constant_id = 6) const bool ALIGNED = true;  // offsets and strides are multiples of 4
layout(constant_id = 7) const bool SUM_BATCHES = false;
layout(constant_id = 8) const bool SUM_HEADS = false;
layout(constant_id = 9) const bool SUM_ROWS = false;  // then neither of the others
layout(local_size_x_id = 0) in;

const uint STAGE_ROWS = 4;  // of accumulate, which is not used
#define FEATURES_ID 10
#define FEATURES_BINDING 6
#define BY_HEAD
#include "lib/bwd_scalar_inputs.glsl"

layout(binding = 5, scalar) writeonly buffer Out { ELEM out1[]; };
layout(binding = 5, scalar) writeonly buffer Out32 { float out32[]; };

#define WALKED_HIDES false
#define TILE_ROWS BLOCK_M
#define TILE_KEYS BLOCK_N
#include "lib/bwd_scalar.glsl"

shared float column_sums[SUM_ROWS ? THREADS_Y * BLOCK_N : 1];  // (THREADS_Y, BLOCK_N)

// add_tile adds dS of the rows from row0 and the keys from col0 on.
void add_tile(inout TileNT sum, const Block block, const uint batch, const uint head, const uint row0, const uint col0) {
    const uint ty = gl_LocalInvocationIndex / THREADS_X;
    const uint tx = gl_LocalInvocationIndex % THREADS_X;
    const uint kv_head = head / p.heads_per_kv;
    const uint count = min(BLOCK_M, p.seq_q - row0);
    const uint keys = min(BLOCK_N, p.seq_kv - col0);
    const Part Q_ = Part(TENSOR_Q, HEAD_AT(q, batch, head) + row0 * p.q_stride_s, p.q_stride_s, count);
    const Part dO_ = Part(TENSOR_DO, HEAD_AT(do, batch, head) + row0 * p.do_stride_s, p.do_stride_s, count);
    const Part K_ = Part(TENSOR_K, HEAD_AT(k, batch, kv_head) + col0 * p.k_stride_s, p.k_stride_s, keys);
    const Part V_ = Part(TENSOR_V, HEAD_AT(v, batch, kv_head) + col0 * p.v_stride_s, p.v_stride_s, keys);
    const uint rows_base = rows_at(batch, head) + row0;
    barrier();  // the bits before are read
    fill_kept(block, row0, col0);
    TileNT S, dP;  // (ROWS, COLS)
    product(S, Q_, K_);
    product(dP, dO_, V_);
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = ty * ROWS + i;
        const vec2 lse2_delta = row < count ? rows[rows_base + row] : vec2(0.0);
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            const uint at = i * COLS + j;
            const uint col = tx + j * THREADS_X;
            const bool seen = row < count && in_window(int(row0 + row), int(col0 + col)) && unmasked(block, min(col0 + col, last_key()));
            sum.at[at] += weigh(block, S.at[at], dP.at[at], lse2_delta, int(row0 + row), int(col0 + col), seen, is_kept(row, col)).dS;
        }
    }
}

void put(const uint at, const float x) {
    if (BIAS_F32 || SUM_ROWS) {
        out32[at] = x;
    } else {
        out1[at] = NARROW(x);
    }
}

void main() {
    const uint ty = gl_LocalInvocationIndex / THREADS_X;
    const uint tx = gl_LocalInvocationIndex % THREADS_X;
    const uint number = p.first + gl_WorkGroupID.z;
    const uint out_heads = SUM_HEADS ? 1 : num_heads();
    const uint first_batch = number / out_heads;
    const uint first_head = number % out_heads;
    const uint col0 = gl_WorkGroupID.x * BLOCK_N;
    const uint block_row = gl_WorkGroupID.y * BLOCK_M;
    TileNT sum;  // (ROWS, COLS)
    [[unroll]] for (uint i = 0; i < ROWS * COLS; i++) {
        sum.at[i] = 0.0;
    }
    const uint end_batch = SUM_BATCHES ? p.batches : first_batch + 1;
    const uint end_head = SUM_HEADS ? num_heads() : first_head + 1;
    [[dont_unroll]] for (uint batch = first_batch; batch < end_batch; batch++) {
        p = args.plain;
        const uint first_row = enter_keys(batch, col0, BLOCK_N);
        if (col0 >= p.seq_kv || !SUM_ROWS && block_row + BLOCK_M <= first_row) {
            continue;  // no row of the tile sees a key of it
        }
        const uint row_begin = SUM_ROWS ? first_row : block_row;
        const uint row_end = SUM_ROWS ? p.seq_q : min(p.seq_q, block_row + BLOCK_M);
        [[dont_unroll]] for (uint head = first_head; head < end_head; head++) {
            const Block block = new_block(batch, head, 0);
            [[dont_unroll]] for (uint row0 = row_begin; row0 < row_end; row0 += BLOCK_M) {
                add_tile(sum, block, batch, head, row0, col0);
            }
        }
    }

    const uint base = HEAD_AT(out, first_batch, first_head);
    if (SUM_ROWS) {
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            float x = 0.0;
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                x += sum.at[i * COLS + j];
            }
            column_sums[ty * BLOCK_N + tx + j * THREADS_X] = x;
        }
        barrier();  // column_sums written before they are read
        for (uint col = gl_LocalInvocationIndex; col < BLOCK_N; col += WORKGROUP_SIZE) {
            float x = 0.0;
            for (uint y = 0; y < THREADS_Y; y++) {
                x += column_sums[y * BLOCK_N + col];
            }
            if (col0 + col < args.plain.seq_kv) {
                put(base + col0 + col, x);
            }
        }
        return;
    }
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            const uint row = block_row + ty * ROWS + i;
            const uint col = col0 + tx + j * THREADS_X;
            if (row < args.plain.seq_q && col < args.plain.seq_kv) {
                put(base + row * p.out_stride_s + col, sum.at[i * COLS + j]);
            }
        }
    }
}
