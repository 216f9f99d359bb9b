// attention_bwd_fused_sum: dQ from the parts that attention_bwd_fused_matrix.comp wrote
// for shares of the keys.
//
//     dQ = Scale * sum of part_dq over the shares, in their order
//
//     part_dq  (batch, num_heads, shares, seq_q, head_dim)  f32, rows of `part_ld` vec4
//     dq       (batch, num_heads, seq_q, head_dim)          ELEM, any strides, last axis contiguous
//
// Under a causal mask rows see the first block of a share from some tile on; before that
// tile nothing was written.
//
// An invocation owns four columns of a row.
//
// Dispatch: (ceil(seq_q * HEAD_DIM/4 / WORKGROUP_SIZE), num_heads, batch).
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint HEAD_DIM = 64;
layout(constant_id = 2) const uint BLOCK_M = 64;  // keys of a block
layout(constant_id = 3) const uint STREAM = 32;   // rows of a tile
layout(constant_id = 4) const bool CAUSAL = false;
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint seq_q;
    uint shares;
    int causal_shift;        // row i sees keys j <= i + causal_shift
    float scale;
    uint part_offset;        // vec4, like all of part_dq
    uint part_stride_b;
    uint part_stride_h;
    uint part_stride_share;
    uint part_ld;
    STRIDES(dq)  // elements, like all that follow
} p;

#include "lib/element.glsl"

layout(binding = 0, scalar) readonly buffer PartDQ { vec4 part_dq[]; };
layout(binding = 1, scalar) writeonly buffer DQ { ELEM dq[]; };

const uint COLS4 = HEAD_DIM / 4;  // vec4 of one row

// shares_of returns how many shares have written row `row`: the first ones.
uint shares_of(const uint row) {
    if (!CAUSAL) {
        return p.shares;
    }
    const int keys = int(row / STREAM * STREAM + STREAM) + p.causal_shift;  // that the last row of the tile sees
    return min(uint(max(keys, 0) + int(BLOCK_M) - 1) / BLOCK_M, p.shares);
}

void main() {
    const uint i = gl_WorkGroupID.x * WORKGROUP_SIZE + gl_LocalInvocationIndex;
    const uint row = i / COLS4;
    const uint col = i % COLS4;
    if (row >= p.seq_q) {
        return;
    }
    const uint head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    const uint first = HEAD_AT(part, batch, head) + row * p.part_ld + col;
    const uint shares = shares_of(row);
    vec4 sum = vec4(0.0);
    for (uint s = 0; s < shares; s++) {
        sum += part_dq[first + s * p.part_stride_share];
    }
    sum *= p.scale;
    const uint at = HEAD_AT(dq, batch, head) + row * p.dq_stride_s + col * 4;
    for (uint e = 0; e < 4; e++) {
        dq[at + e] = NARROW(sum[e]);
    }
}
