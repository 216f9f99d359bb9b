// layout: everything that reflection must read; the subject of the tests of
// reflect and layouttest. go test ./internal/shaders/reflect -generate compiles it.
#version 450
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_buffer_reference : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const bool SAVE_RSTD = true;
layout(constant_id = 2) const float EPS = 0.5;
layout(constant_id = 3) const int UNUSED = -2;
layout(local_size_x_id = 0) in;

struct Strides {
    uint batch;
    uint head;
};

layout(buffer_reference, scalar) readonly buffer Ptr { float f[]; };

layout(push_constant, scalar) uniform Params {
    Ptr ptr;
    uint64_t base;
    uint rows;
    float scale;
    Strides q;
    uint shape[3];
    int shift;
} p;

layout(binding = 0, scalar) readonly buffer X { float x[]; };
layout(binding = 0, scalar) readonly buffer X4 { vec4 x4[]; };
layout(binding = 1, scalar) writeonly buffer Y { float y[]; };
layout(binding = 2, scalar) writeonly buffer Rstd { float rstd[]; };
layout(binding = 3, scalar) readonly buffer Table { Strides rows[]; };

const uint TILE = 2 * WORKGROUP_SIZE;  // a constant without an id

void main() {
    // X4 is used before X, so that it comes first in the module.
    const float a = x4[p.q.batch].x + x[p.q.head];
    y[rows[0].head] = a * p.scale + p.ptr.f[TILE] + (SAVE_RSTD ? EPS : 0.0);
}
