// dropout: elements that are zero by chance, and the others scaled.
//
//     y[r,c] = x[r,c] * keep_scale    where word c%4 of philox((c/4, r, stream, number), seed) >= drop_below
//              0                      elsewhere
//
//     x, y   (rows, cols)  ELEM, row strides, last axis contiguous
//     state  (3)           i32: the two words of the seed, and number
//
// Dispatch: any number of workgroups; invocations take vectors of 16 bytes in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const bool ALIGNED = true;  // offsets and strides are multiples of VEC
layout(local_size_x_id = 0) in;

#include "lib/philox.glsl"
#include "lib/strides.glsl"
#include "lib/vec16.glsl"

layout(push_constant, scalar) uniform Params {
    uint rows;
    uint cols;
    uint stream;
    uint drop_below;
    float keep_scale;
    uint state_offset;
    ROW_STRIDE(x)
    ROW_STRIDE(y)
} p;

READ16(0, X, x)
layout(binding = 1, scalar) readonly buffer State { uint state[]; };
WRITE16(2, Y, y)

void main() {
    const uvec2 seed = uvec2(state[p.state_offset], state[p.state_offset + 1]);
    const uint number = state[p.state_offset + 2];
    const uint vectors = (p.cols + VEC - 1) / VEC;
    for (uint i = gl_GlobalInvocationID.x; i < p.rows * vectors; i += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        const uint row = i / vectors;
        const uint c = i % vectors * VEC;
        const uvec4 x = load_x(p.x_offset + row * p.x_stride + c, p.cols - c);
        vec4 y[2];
        [[unroll]] for (uint q = 0; q < QUADS; q++) {
            const uvec4 words = philox(uvec4(c / 4 + q, row, p.stream, number), seed);
            y[q] = mix(vec4(0.0), quad(x, q) * p.keep_scale, greaterThanEqual(words, uvec4(p.drop_below)));
        }
        store_y(p.y_offset + row * p.y_stride + c, p.cols - c, pack(y[0], y[QUADS - 1]));
    }
}
