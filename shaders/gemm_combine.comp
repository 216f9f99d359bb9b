// gemm_combine: adds the sums of workgroups that divided the k of a product (split-K), and
// applies the epilogue.
//
//     C = epilogue(alpha * (sum over splits of Sums) + beta * C), batch by batch
//
//     Sums       (splits, batch, m, a_stride)  f32, contiguous
//     C, R, X, S (batch, m, n)              OUT_FORMAT; lib/gemm_params.glsl has the epilogue
//
// Splits are added in order, so results do not depend on timing.
//
// Dispatch: (x, y, batch) with x * y >= tiles, of 4 * WORKGROUP_SIZE elements.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(local_size_x_id = 0) in;

#define EPILOGUE_ID 1
#include "lib/formats.glsl"
#include "lib/gemm_params.glsl"

layout(binding = 0, scalar) readonly buffer Sums { vec4 sums[]; };
#define OUT_BINDING 1
#include "lib/gemm_out.glsl"
#include "lib/gemm_epilogue.glsl"

void main() {
    const uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP_SIZE + gl_LocalInvocationIndex;
    const uint row = i / (p.a_stride / 4);
    const uint col = i % (p.a_stride / 4) * 4;
    if (row >= p.m) {
        return;
    }
    const uint batch = gl_WorkGroupID.z;
    vec4 sum = vec4(0.0);
    for (uint split = 0; split < p.splits; split++) {
        sum += sums[(ROW_AT(a, split * gl_NumWorkGroups.z + batch, row) + col) / 4];
    }
    if (OUT_ALIGNED && col + 4 <= p.n) {
        finish(batch, row, col, sum, 4);
        return;
    }
    [[unroll]] for (uint e = 0; e < 4; e++) {
        if (col + e < p.n) {
            finish(batch, row, col + e, vec4(sum[e]), 1);
        }
    }
}
