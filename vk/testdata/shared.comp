// shared: shared memory of every kind, whose sizes are computed, for the tests of package vk.
//
// Dispatch: any.
#version 450
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(constant_id = 0) const uint N = 3;
layout(constant_id = 1) const bool LARGE = false;
layout(local_size_x = 1) in;

struct Part {
    float weight;
    vec3 place;
    uint at;
};

const uint ROWS = (N + 6) / 8 * 8 - N % 2;
const uint COLS = LARGE && N > 1 || N >= 100 ? ROWS * 2 : 1;

layout(binding = 0, scalar) buffer Out { uint x[]; };

shared uint words[ROWS];
shared vec4 quads[COLS][2];
shared Part parts[N];
shared f16vec3 halves[N];
shared bool one;

void main() {
    one = x[0] == 0;
    words[x[1]] = x[0];
    quads[x[1]][1] = vec4(x[0]);
    parts[x[1]] = Part(1.0, vec3(x[0]), 2);
    halves[x[1]] = f16vec3(x[0]);
    barrier();
    x[0] = words[x[2]] + uint(quads[x[2]][0].x) + parts[x[2]].at + uint(halves[x[2]].y) + uint(one);
}
