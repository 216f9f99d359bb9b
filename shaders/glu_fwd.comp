// glu_fwd: gated linear units.
//
//     y[r,c] = a(g[r,c]) * u[r,c]     a is silu or gelu, lib/glu.glsl
//
//     g, u, y  (rows, cols)  ELEM, row strides, last axis contiguous
//
// G and u may be the halves of the columns of one tensor: the stride is their distance of rows then.
//
// Dispatch: any number of workgroups; invocations take vectors of 16 bytes in turn.
#version 450

#include "lib/glu.glsl"

layout(push_constant, scalar) uniform Params {
    uint rows;
    uint cols;
    Place g;
    Place u;
    Place y;
} p;

READ16(0, G, g)
READ16(1, U, u)
WRITE16(2, Y, y)

void main() {
    const uint vectors = (p.cols + VEC - 1) / VEC;
    for (uint i = gl_GlobalInvocationID.x; i < p.rows * vectors; i += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        const uint row = i / vectors;
        const uint c = i % vectors * VEC;
        const uint n = p.cols - c;
        const uvec4 g = load_g(at(p.g, row, c), n);
        const uvec4 u = load_u(at(p.u, row, c), n);
        vec4 y[2];
        [[unroll]] for (uint q = 0; q < QUADS; q++) {
            y[q] = activated(quad(g, q)).value * quad(u, q);
        }
        store_y(at(p.y, row, c), n, pack(y[0], y[QUADS - 1]));
    }
}
