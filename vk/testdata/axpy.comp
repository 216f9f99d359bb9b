// axpy: y = a*x + y, for the tests of package vk.
//
// Dispatch: (ceil(n / 64), 1, 1).
#version 450
#extension GL_EXT_scalar_block_layout : require

layout(constant_id = 0) const uint SCALE = 1;
layout(constant_id = 1) const bool NEGATE = false;
layout(constant_id = 2) const float BIAS = 0.0;
layout(local_size_x = 64) in;

layout(push_constant, scalar) uniform Params {
    uint n;
    uint x_offset;
    uint y_offset;
    float a;
} p;

layout(binding = 0, scalar) readonly buffer X { float x[]; };
layout(binding = 1, scalar) buffer Y { float y[]; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= p.n) return;
    float v = p.a * float(SCALE) * x[p.x_offset + i];
    y[p.y_offset + i] += (NEGATE ? -v : v) + BIAS;
}
