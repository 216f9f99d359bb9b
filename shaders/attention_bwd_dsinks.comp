// attention_bwd_dsinks: the gradient of the sink of each head, in parts that
// attention_bwd_sum.comp adds.
//
//     out[batch, head, part] = sum over CHUNK rows of exp(sink - LSE) * -Delta
//
//     rows  (batch, num_heads, seq_q, 2)                    f32, see attention_bwd_delta.comp
//     out   (batch, num_heads, ceil(seq_q / CHUNK))         f32, any strides, last axis contiguous
//
// A row that sees nothing but the sink counts too. A sink of -inf gives 0.
//
// Dispatch: (ceil(seq_q / CHUNK), num_heads, batch).
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;  // a power of two
layout(constant_id = 1) const uint CHUNK = 2048;
layout(local_size_x_id = 0) in;

#define FEATURES_ID 2
#define FEATURES_BINDING 2
#define ELEM float  // of a bias, which is not read here
#define WIDEN(x) (x)
#define BY_HEAD
#include "lib/params_bwd.glsl"

layout(binding = 0, scalar) readonly buffer Rows { vec2 rows[]; };
layout(binding = 1, scalar) writeonly buffer Out { float out32[]; };

#include "lib/softmax.glsl"
#include "lib/mask.glsl"
#include "lib/features.glsl"

shared float partial[WORKGROUP_SIZE];

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    enter_sequence(batch);
    const float sink = new_block(batch, head, 0).sink;
    const uint base = rows_at(batch, head);
    const uint end = min((gl_WorkGroupID.x + 1) * CHUNK, p.seq_q);
    float sum = 0.0;
    for (uint row = gl_WorkGroupID.x * CHUNK + tid; row < end; row += WORKGROUP_SIZE) {
        const vec2 lse2_delta = rows[base + row];
        sum -= exp2(sink - lse2_delta.x) * lse2_delta.y;
    }
    partial[tid] = sum;
    for (uint half_size = WORKGROUP_SIZE / 2; half_size > 0; half_size /= 2) {
        barrier();  // partial written before it is read
        if (tid < half_size) {
            partial[tid] += partial[tid + half_size];
        }
    }
    if (tid == 0) {
        out32[HEAD_AT(out, batch, head) + gl_WorkGroupID.x] = partial[0];
    }
}
