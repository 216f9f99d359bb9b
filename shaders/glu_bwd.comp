// glu_bwd: gradients of glu_fwd, both in one pass.
//
//     dg[r,c] = dy[r,c] * a'(g[r,c]) * u[r,c]
//     du[r,c] = dy[r,c] * a(g[r,c])
//
//     g, u, dy, dg, du  (rows, cols)  ELEM, row strides, last axis contiguous
//
// Dispatch: any number of workgroups; invocations take vectors of 16 bytes in turn.
#version 450

#include "lib/glu.glsl"

layout(push_constant, scalar) uniform Params {
    uint rows;
    uint cols;
    Place g;
    Place u;
    Place dy;
    Place dg;
    Place du;
} p;

READ16(0, G, g)
READ16(1, U, u)
READ16(2, DY, dy)
WRITE16(3, DG, dg)
WRITE16(4, DU, du)

void main() {
    const uint vectors = (p.cols + VEC - 1) / VEC;
    for (uint i = gl_GlobalInvocationID.x; i < p.rows * vectors; i += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        const uint row = i / vectors;
        const uint c = i % vectors * VEC;
        const uint n = p.cols - c;
        const uvec4 g = load_g(at(p.g, row, c), n);
        const uvec4 u = load_u(at(p.u, row, c), n);
        const uvec4 dy = load_dy(at(p.dy, row, c), n);
        vec4 dg[2], du[2];
        [[unroll]] for (uint q = 0; q < QUADS; q++) {
            const Activated a = activated(quad(g, q));
            const vec4 d = quad(dy, q);
            dg[q] = d * a.slope * quad(u, q);  // the product with a slope near 0 first: d * u may be infinite
            du[q] = d * a.value;
        }
        store_dg(at(p.dg, row, c), n, pack(dg[0], dg[QUADS - 1]));
        store_du(at(p.du, row, c), n, pack(du[0], du[QUADS - 1]));
    }
}
