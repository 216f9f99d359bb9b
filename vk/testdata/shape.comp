// shape: what a workgroup looks like from inside, for the tests of package vk.
//
// Dispatch: any.
#version 450
#extension GL_EXT_scalar_block_layout : require
#extension GL_KHR_shader_subgroup_basic : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const int SIGNED = 0;
layout(local_size_x_id = 0) in;

layout(binding = 0, scalar) buffer Out { uint x[]; };

void main() {
    if (gl_LocalInvocationIndex != 0) return;
    atomicAdd(x[0], 1); // workgroups
    x[1] = gl_WorkGroupSize.x;
    x[2] = gl_SubgroupSize;
    x[3] = gl_NumSubgroups;
    x[4] = uint(SIGNED);
}
