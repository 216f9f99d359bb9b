// scale: y[i] = factor * x[i], the subject of this package's tests.
#version 450

layout(local_size_x = 64) in;

layout(push_constant, scalar) uniform Params {
    uint n;
    float factor;
} p;

layout(binding = 0, scalar) readonly buffer X { TYPE x[]; };
layout(binding = 1, scalar) writeonly buffer Y { TYPE y[]; };

#include "lib/scale.glsl"
#include "lib/index.glsl"

void main() {
    const uint i = index();
    if (i < p.n) {
        y[i] = scaled(x[i], p.factor);
    }
}
