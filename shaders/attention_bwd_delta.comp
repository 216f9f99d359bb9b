// attention_bwd_delta: the statistics of each row that the other backward kernels need.
//
//     lse2  = LSE * log2(e)             0 for -Inf: all weights of the row are 0
//     Delta = rowsum(dO * O) - dLSE
//
//     o, dO      (batch, num_heads, seq_q, head_dim)  ELEM, any strides, last axis contiguous
//     lse, dlse  (batch, num_heads, seq_q)            f32, any strides
//     rows       (batch, num_heads, seq_q, 2)         f32, contiguous: lse2, Delta
//
// dS = P * (dP - Delta). The gradient of LSE adds P * dLSE to dS, since P is the derivative
// of LSE with respect to the scores.
//
// TEAM invocations sum a row, each every TEAM-th vec4; the first of them adds their sums
// in order, so results do not depend on timing.
//
// Dispatch: (ceil(seq_q / (WORKGROUP_SIZE / TEAM)), num_heads, batch).
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint TEAM = 8;
layout(constant_id = 2) const uint HEAD_DIM = 64;
layout(constant_id = 3) const bool ALIGNED = true;  // offsets and strides are multiples of 4
layout(constant_id = 4) const bool READ_DLSE = false;
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint seq_q;
    HEAD_STRIDES(rows)  // pairs
    STRIDES(o)  // elements, like all that follow
    STRIDES(do)
    STRIDES(lse)
    STRIDES(dlse)
} p;

#include "lib/element.glsl"
#include "lib/softmax.glsl"

READ4(0, O, o)
READ4(1, DO, do)
layout(binding = 2, scalar) readonly buffer LSE { float lse_in[]; };
layout(binding = 3, scalar) readonly buffer DLSE { float dlse_in[]; };
layout(binding = 4, scalar) writeonly buffer Rows { vec2 rows[]; };

shared float partial[WORKGROUP_SIZE];

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint row = gl_WorkGroupID.x * (WORKGROUP_SIZE / TEAM) + tid / TEAM;
    const uint head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    const bool exists = row < p.seq_q;

    float sum = 0.0;
    if (exists) {
        const uint o_at = HEAD_AT(o, batch, head) + row * p.o_stride_s;
        const uint do_at = HEAD_AT(do, batch, head) + row * p.do_stride_s;
        for (uint d = tid % TEAM * 4; d < HEAD_DIM; d += TEAM * 4) {
            sum += dot(load_o(o_at + d), load_do(do_at + d));
        }
    }
    partial[tid] = sum;
    barrier();  // partial written before it is read
    if (!exists || tid % TEAM != 0) {
        return;
    }
    for (uint t = 1; t < TEAM; t++) {
        sum += partial[tid + t];
    }
    if (READ_DLSE) {
        sum -= dlse_in[HEAD_AT(dlse, batch, head) + row * p.dlse_stride_s];
    }
    const float lse = lse_in[HEAD_AT(lse, batch, head) + row * p.lse_stride_s];
    // A row that sees nothing has -inf, and no weights. Scores are -inf there, so
    // that any finite lse2 makes exp2(S - lse2) = 0, but -inf - -inf is NaN.
    const float lse2 = lse == NEG_INF ? 0.0 : lse / LN_2;
    rows[HEAD_AT(rows, batch, head) + row] = vec2(lse2, sum);
}
