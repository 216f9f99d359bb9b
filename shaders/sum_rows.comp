// sum_rows: adds the rows of sums that the workgroups of another kernel left.
//
//     dst[c] = sum over i of parts[i,c]
//
//     parts  (count, cols rounded up to 4)  f32
//     dst    (cols)                         ELEM, contiguous
//
// A workgroup has GROUP_QUADS times 4 columns. Its invocations divide the rows of parts, and
// a tree adds their sums: the same bits on every run.
//
// Dispatch: (ceil(cols / (4 * GROUP_QUADS)), 1, 1).
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;  // a power of two
layout(constant_id = 1) const uint GROUP_QUADS = 4;       // likewise
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint count;
    uint cols;
    uint dst_offset;
} p;

#include "lib/element.glsl"

layout(binding = 0, scalar) readonly buffer Parts { vec4 parts[]; };
layout(binding = 1, scalar) writeonly buffer Dst { ELEM dst[]; };

shared vec4 sums[WORKGROUP_SIZE];

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint row4 = (p.cols + 3) / 4;
    const uint at = gl_WorkGroupID.x * GROUP_QUADS + tid % GROUP_QUADS;
    vec4 sum = vec4(0.0);
    if (at < row4) {
        for (uint i = tid / GROUP_QUADS; i < p.count; i += WORKGROUP_SIZE / GROUP_QUADS) {
            sum += parts[i * row4 + at];
        }
    }
    sums[tid] = sum;
    for (uint half_of = WORKGROUP_SIZE / 2; half_of >= GROUP_QUADS; half_of /= 2) {
        barrier();  // sums written before they are read
        if (tid < half_of) {
            sums[tid] += sums[tid + half_of];
        }
    }
    if (tid >= GROUP_QUADS || at >= row4) {
        return;
    }
    [[unroll]] for (uint e = 0; e < 4; e++) {
        const uint c = at * 4 + e;
        if (c < p.cols) {
            dst[p.dst_offset + c] = NARROW(sums[tid][e]);
        }
    }
}
