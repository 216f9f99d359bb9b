// micro_copy: the rate at which a device reads and writes memory.
//
//     dst[i] = src[i]
//
//     src, dst  (n)  u32 x 4
//
// Dispatch: (workgroups, 1, 1); invocations take elements in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint n;
} p;

layout(binding = 0, scalar) readonly buffer Src { uvec4 src[]; };
layout(binding = 1, scalar) writeonly buffer Dst { uvec4 dst[]; };

void main() {
    const uint step = gl_NumWorkGroups.x * WORKGROUP_SIZE;
    for (uint i = gl_GlobalInvocationID.x; i < p.n; i += step) {
        dst[i] = src[i];
    }
}
