// gemm_gemv_coopmat: products with few rows, as gemm_gemv.comp has them, on cooperative matrices: an
// instruction instead of some for each number of op(B) and row.
//
//     C = epilogue(alpha * A * op(B) + beta * C), batch by batch
//
//     A      (m, k)  ELEM, last axis contiguous
//     op(B)  (k, n)  ELEM, from B (n, k), last axis contiguous
//     C, R, X, S (m, n) OUT_FORMAT, last axis contiguous; lib/gemm_params.glsl has the epilogue
//
// lib/few_rows.glsl has the sums. With PARTIAL the kernel writes sums of a part of k, as in lib/gemm_matrix.glsl.
//
// Dispatch: (x, y, batch * splits) with x * y >= tiles.
#version 460
#include "lib/matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;
layout(constant_id = 1) const uint SUBGROUPS = 8;
layout(constant_id = 2) const uint TEAM = 8;
layout(constant_id = 3) const uint MAT_M = 16;
layout(constant_id = 4) const uint MAT_N = 16;
layout(constant_id = 5) const uint BLOCK_M = 16;       // 8 or 16
layout(constant_id = 6) const uint BLOCK_N = 16;       // of SUBGROUPS / TEAM teams; each has a multiple of MAT_N
layout(constant_id = 7) const uint BLOCK_K = 1024;     // a multiple of TEAM * 32
layout(constant_id = 8) const bool IN_PLACE = false;   // matrices lie as lib/quads.glsl says
layout(constant_id = 9) const bool TAIL = true;        // k is not a multiple of BLOCK_K
layout(constant_id = 10) const uint GROUP_M = 1;       // see lib/gemm_order.glsl
layout(constant_id = 11) const bool ALONE = true;      // blocks are of one row, and have all of k
layout(constant_id = 12) const bool ALIGNED = true;    // offsets and strides of A and B are multiples of VEC
layout(constant_id = 13) const bool WHOLE = true;      // so are the lengths of their rows
layout(constant_id = 14) const bool PARTIAL = false;   // writes sums of a part of k
layout(local_size_x_id = 0) in;

#define EPILOGUE_ID 15
#include "lib/vec16.glsl"
#include "lib/formats.glsl"
#include "lib/gemm_params.glsl"
#include "lib/matrix_types.glsl"

READ16(0, A, a)
READ16(1, B, b)
#define OUT_BINDING 2
#include "lib/gemm_out.glsl"
#include "lib/gemm_order.glsl"
#include "lib/gemm_epilogue.glsl"
#include "lib/packed.glsl"

#include "lib/few_rows.glsl"

Work w;

// The elements from i on of A or B, n of them before the end of k.
#define VECTOR(name, i, n) (!WHOLE ? load_##name(i, n) : !TAIL || n > 0 ? name##16[(i) / VEC] : uvec4(0))

uvec4 row_vector(const uint r, const uint k, const uint n) {
    return VECTOR(a, ROW_AT(a, w.batch, min(w.row + r, p.m - 1)) + k, n);
}
uvec4 line_vector(const uint c, const uint k, const uint n) {
    return VECTOR(b, ROW_AT(b, w.batch, min(w.col + gl_SubgroupID / TEAM * COLS + c, p.n - 1)) + k, n);
}
uvec4 prepared(const uvec4 x, const uint k, inout float squares) { return x; }

void main() {
    w = Work(0, BLOCK_ID * BLOCK_N, gl_WorkGroupID.z, 0, BLOCK_ID < p.tiles);
    if (!ALONE) { // divisions, which take as long as a load
        w = next_work();
    }
    if (!w.exists) {
        return;
    }
    multiply(w.split * p.split_k, min((w.split + 1) * p.split_k, p.k));
    const uint product = PARTIAL ? w.split * (gl_NumWorkGroups.z / p.splits) + w.batch : w.batch;
    for (uint i = gl_LocalInvocationIndex; i < BLOCK_M * BLOCK_N; i += WORKGROUP_SIZE) {
        const uint row = i / BLOCK_N;
        const uint x = i % BLOCK_N;
        if (w.row + row < p.m && w.col + x < p.n) {
            finish(product, w.row + row, w.col + x, vec4(total(row, x / COLS, x % COLS)), 1);
        }
    }
}
