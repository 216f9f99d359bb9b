// gemm_skinny: matrix products on cooperative matrices that are multiplied again, by skinny
// matrices (a few columns), without reaching memory.
//
//     Y = silu(alpha * op(A) * op(B)) * W, batch by batch
//
//     op(A)  (m, k)  ELEM, from A (m, k) with A_BY_K, else (k, m); last axis contiguous
//     op(B)  (k, n)  ELEM, from B (n, k) with B_BY_K, else (k, n); likewise
//     W      (n, COLUMNS) ELEM, last axis contiguous; at R of lib/gemm_params.glsl
//     X      (m, n)  ELEM: alpha * op(A) * op(B), with KEEP_X; OUT_ALIGNED is of X alone
//     C      (parts, batch, m, c_stride) f32: sums over the columns of op(B) of one
//            subgroup, a part; gemm_combine adds the parts to Y
//
// Sums of products go through silu in float32 and are not rounded before the product with W.
// With PACKED B is op(B) in right matrices of gemm_pack.comp, and the product with W is in
// registers (lib/gemm_skinny_matrix.glsl). lib/gemm_matrix.glsl has the algorithm.
//
// Dispatch: (x, y, batch) with x * y >= tiles.
#version 460
#ifdef PACKED
#extension GL_KHR_shader_subgroup_vote : require
#endif
#include "lib/gemm_constants.glsl"
layout(constant_id = 25) const uint COLUMNS = 3;       // of W
layout(local_size_x_id = 0) in;

#define EPILOGUE_ID 16
#ifdef PACKED
#define SKINNY_ID 26
#define RUNS_ID 27
#endif
#include "lib/gemm_tensors.glsl"
#include "lib/gemm_matrix.glsl"

#include "lib/gemm_skinny.glsl"

// add_row adds sums of a row to what the strips before of its part wrote.
void add_row(const Work w, const uint row, const bool first, const float y[COLUMNS]) {
    const uint part = w.col / SUBGROUP_N + gl_SubgroupID % SUBGROUPS_N;
    const uint at = ROW_AT(c, part * gl_NumWorkGroups.z + w.batch, row);
    [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
        c1[at + o] = first ? y[o] : c1[at + o] + y[o];
    }
}

void main() {
    const Work w = next_work();
    if (w.exists) {
        load_w(w.batch, w.col);
        gemm(w);
    }
}
