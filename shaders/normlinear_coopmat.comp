// normlinear_coopmat: a product of few normalized rows, as normlinear.comp has it, on cooperative matrices.
//
//     y[r,j]  = rstd[r] * sum over i of round(x[r,i] * norm_w[i]) * w[j,i] + bias[j]
//     rstd[r] = 1 / sqrt(mean(x[r,:]^2) + eps)
//
// With GLU it is a(g) * u, and tensors are as there. round is to ELEM: x * norm_w must be within it.
//
// lib/few_rows.glsl has the sums. A subgroup has COLS rows of w, half of them gates with GLU. Squares of x are added up
// beside the products, by every team, and the factor rstd waits for the end.
//
// Dispatch: any number of workgroups; each takes blocks of BLOCK_N rows of w in turn.
#version 460
#include "lib/matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;
layout(constant_id = 1) const uint SUBGROUPS = 8;
layout(constant_id = 2) const uint TEAM = 8;
layout(constant_id = 3) const uint MAT_M = 16;
layout(constant_id = 4) const uint MAT_N = 16;
layout(constant_id = 5) const uint BLOCK_M = 16;       // 8 or 16, not less than M
layout(constant_id = 6) const uint BLOCK_N = 16;       // of SUBGROUPS / TEAM teams; each has a multiple of MAT_N
layout(constant_id = 7) const uint BLOCK_K = 1024;     // a multiple of TEAM * 32
layout(constant_id = 8) const bool IN_PLACE = false;   // matrices lie as lib/quads.glsl says
layout(constant_id = 9) const uint M = 1;              // rows of x
layout(constant_id = 10) const bool GLU = false;
layout(constant_id = 11) const uint ACTIVATION = 0;
layout(constant_id = 12) const bool BIAS = false;
layout(constant_id = 13) const uint FORMAT = 0;        // of y, lib/formats.glsl
layout(constant_id = 14) const bool ALIGNED = true;    // offsets and strides of all tensors but y and bias are multiples of VEC
layout(constant_id = 15) const bool WHOLE = true;      // so is k
layout(local_size_x_id = 0) in;

#include "lib/normlinear.glsl"
#include "lib/matrix_types.glsl"
#include "lib/packed.glsl"

#define NORMALIZED
#include "lib/few_rows.glsl"

const uint OUTS = GLU ? COLS / 2 : COLS;  // columns of y of a subgroup
const uint BLOCK_OUTS = SUBGROUPS / TEAM * OUTS;

uint first_col;  // of the subgroup

uvec4 row_vector(const uint r, const uint k, const uint n) { return VECTOR(x, at(p.x, min(r, M - 1), k), n); }

uvec4 line_vector(const uint c, const uint k, const uint n) {
    return VECTOR(w, at(p.w, min(first_col + c % OUTS, p.n - 1) + c / OUTS * p.n, k), n);
}

uvec4 prepared(const uvec4 x, const uint k, inout float squares) {
    const vec4 a = quad(x, 0);
    const vec4 b = quad(x, 1);
    squares += dot(a, a) + dot(b, b);
    return pack(a * norm_weights(k, left(k)), b * norm_weights(k + 4, left(k + 4)));
}

void main() {
    for (uint block = gl_WorkGroupID.x; block * BLOCK_OUTS < p.n; block += gl_NumWorkGroups.x) {
        first_col = block * BLOCK_OUTS + gl_SubgroupID / TEAM * OUTS;
        multiply(0, p.k);
        for (uint i = gl_LocalInvocationIndex; i < M * BLOCK_OUTS; i += WORKGROUP_SIZE) {
            const uint r = i / BLOCK_OUTS;
            const uint x = i % BLOCK_OUTS;
            const uint j = block * BLOCK_OUTS + x;
            float squares = 0.0;
            [[unroll]] for (uint s = 0; s < TEAM; s++) {
                squares += squares_of[s * ROWS + r];
            }
            if (j < p.n) {
                write(r, j, squares, total(r, x / OUTS, x % OUTS), total(r, x / OUTS, x % OUTS + COLS - OUTS));
            }
        }
        barrier();  // sums are read before they are written, for the next block
    }
}
