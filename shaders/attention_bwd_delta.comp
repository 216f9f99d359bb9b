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

layout(push_constant, scalar) uniform Params {
    uint seq_q;
    uint rows_offset;  // pairs
    uint rows_stride_b;
    uint rows_stride_h;
    uint o_offset;     // elements, like all that follow
    uint o_stride_b;
    uint o_stride_h;
    uint o_stride_s;
    uint do_offset;
    uint do_stride_b;
    uint do_stride_h;
    uint do_stride_s;
    uint lse_offset;
    uint lse_stride_b;
    uint lse_stride_h;
    uint lse_stride_s;
    uint dlse_offset;
    uint dlse_stride_b;
    uint dlse_stride_h;
    uint dlse_stride_s;
} p;

#include "lib/element.glsl"
#include "lib/softmax.glsl"

layout(binding = 0, scalar) readonly buffer O { ELEM4 o4[]; };
layout(binding = 0, scalar) readonly buffer O1 { ELEM o1[]; };
layout(binding = 1, scalar) readonly buffer DO { ELEM4 do4[]; };
layout(binding = 1, scalar) readonly buffer DO1 { ELEM do1[]; };
layout(binding = 2, scalar) readonly buffer LSE { float lse_in[]; };
layout(binding = 3, scalar) readonly buffer DLSE { float dlse_in[]; };
layout(binding = 4, scalar) writeonly buffer Rows { vec2 rows[]; };

DEFINE_LOAD4(load_o, o4, o1)
DEFINE_LOAD4(load_do, do4, do1)

shared float partial[WORKGROUP_SIZE];

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint row = gl_WorkGroupID.x * (WORKGROUP_SIZE / TEAM) + tid / TEAM;
    const uint head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    const bool exists = row < p.seq_q;

    float sum = 0.0;
    if (exists) {
        const uint o_at = p.o_offset + batch * p.o_stride_b + head * p.o_stride_h + row * p.o_stride_s;
        const uint do_at = p.do_offset + batch * p.do_stride_b + head * p.do_stride_h + row * p.do_stride_s;
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
        sum -= dlse_in[p.dlse_offset + batch * p.dlse_stride_b + head * p.dlse_stride_h + row * p.dlse_stride_s];
    }
    const float lse = lse_in[p.lse_offset + batch * p.lse_stride_b + head * p.lse_stride_h + row * p.lse_stride_s];
    // A row that sees nothing has -inf, and no weights. Scores are -inf there, so
    // that any finite lse2 makes exp2(S - lse2) = 0, but -inf - -inf is NaN.
    const float lse2 = lse == NEG_INF ? 0.0 : lse / LN_2;
    rows[p.rows_offset + batch * p.rows_stride_b + head * p.rows_stride_h + row] = vec2(lse2, sum);
}
