// attention_bwd_sum: sums of partial gradients, in one order always.
//
//     out[b, h, x] = sum over i < terms_i, j < terms_j of part[b, h, x, i, j]
//
//     part  f32, any strides
//     out   ELEM, or f32 with TO_F32, any strides, last axis contiguous
//
// Dispatch: (ceil(n / WORKGROUP_SIZE), heads, batches) of out, an invocation for each element.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const bool TO_F32 = true;
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint n;              // length of axis x
    uint terms_i;
    uint terms_j;
    uint part_offset;    // elements, like all that follow
    uint part_stride_b;
    uint part_stride_h;
    uint part_stride_x;
    uint part_stride_i;
    uint part_stride_j;
    HEAD_STRIDES(out)
} p;

#include "lib/element.glsl"

layout(binding = 0, scalar) readonly buffer Part { float part[]; };
layout(binding = 1, scalar) writeonly buffer Out { ELEM out1[]; };
layout(binding = 1, scalar) writeonly buffer Out32 { float out32[]; };

void main() {
    const uint x = gl_GlobalInvocationID.x;
    if (x >= p.n) {
        return;
    }
    const uint base = HEAD_AT(part, gl_WorkGroupID.z, gl_WorkGroupID.y) + x * p.part_stride_x;
    float sum = 0.0;
    for (uint i = 0; i < p.terms_i; i++) {
        for (uint j = 0; j < p.terms_j; j++) {
            sum += part[base + i * p.part_stride_i + j * p.part_stride_j];
        }
    }
    const uint at = HEAD_AT(out, gl_WorkGroupID.z, gl_WorkGroupID.y) + x;
    if (TO_F32) {
        out32[at] = sum;
    } else {
        out1[at] = NARROW(sum);
    }
}
