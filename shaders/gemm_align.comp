// gemm_align: copies matrices of 16-bit elements with unaligned rows to rows that start at
// multiples of 8 elements. An element of 32 bits counts as two of 16.
//
//     out[row, col] = a[row, col] for col < len, else 0
//
//     a    (batch, rows, len)    any strides, last axis contiguous
//     out  (batch, rows, 8*row8) strides that are multiples of 8, last axis contiguous
//
// Dispatch: (x, y, batch) with x * y * WORKGROUP_SIZE >= rows * row8.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint rows;
    uint len;
    uint row8;    // uvec4 of a row of out
    uint offset;  // elements, like all that follow
    uint stride_b;
    uint stride;
    uint out_offset;
    uint out_stride_b;
    uint out_stride;
} p;

layout(binding = 0, scalar) readonly buffer A { uvec4 a8[]; };
layout(binding = 1, scalar) writeonly buffer Out { uvec4 out8[]; };

#include "lib/load8_shift.glsl"

DEFINE_LINE8(load_a, a8)

void main() {
    const uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * WORKGROUP_SIZE + gl_LocalInvocationIndex;
    const uint row = i / p.row8;
    const uint col = i % p.row8 * 8;
    if (row >= p.rows) {
        return;
    }
    const uvec4 x = load_a(p.offset + gl_WorkGroupID.z * p.stride_b + row * p.stride, col, p.len);
    out8[(p.out_offset + gl_WorkGroupID.z * p.out_stride_b + row * p.out_stride + col) / 8] = x;
}
