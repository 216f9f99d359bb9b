// spin: one invocation that is busy for a while, for the tests of package vk.
//
// Dispatch: (1, 1, 1).
#version 450
#extension GL_EXT_scalar_block_layout : require

layout(local_size_x = 1) in;

layout(push_constant, scalar) uniform Params {
    uint rounds;
} p;

layout(binding = 0, scalar) buffer Out { uint x[]; };

void main() {
    uint v = x[0];
    for (uint i = 0; i < p.rounds; i++) v = v * 1664525u + 1013904223u + (v >> 16);
    x[0] = v | 1u; // never 0
}
