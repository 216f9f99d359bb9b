// gemm_coopmat: matrix products on cooperative matrices, with an epilogue.
//
//     C = epilogue(alpha * op(A) * op(B) + beta * C), batch by batch
//
//     op(A)  (m, k)  ELEM, from A (m, k) with A_BY_K, else (k, m); last axis contiguous
//     op(B)  (k, n)  ELEM, from B (n, k) with B_BY_K, else (k, n); likewise
//     C, R, X, S (m, n) OUT_FORMAT, last axis contiguous; lib/gemm_params.glsl has the epilogue
//
// With F32X2 op(A) and op(B) are float32, each as two parts of ELEM, float16. With PACKED
// B is op(B) in right matrices of gemm_pack.comp, whose columns may be dealt out to matrices
// so that C leaves straight from registers (lib/gemm_direct.glsl).
//
// lib/gemm_matrix.glsl has the algorithm, lib/gemm_epilogue.glsl activations and residual.
//
// Dispatch: (x, y, batch * splits) with x * y >= tiles. With GROUP it is many products in one
// launch (lib/gemm_params.glsl), (x, y, 1) with x * y >= the tiles of all.
#version 460
#extension GL_KHR_shader_subgroup_vote : require
#include "lib/gemm_constants.glsl"
layout(local_size_x_id = 0) in;

#define EPILOGUE_ID 16
#define GROUP_BINDING 6
#ifndef GROUP
#define OUT_MATRIX_ID 25
#endif
#if !defined(GROUP) && !defined(PACKED)
#define F32X2_ID 26
#endif
#ifdef PACKED
#define RUNS_ID 26
#endif
#include "lib/gemm_tensors.glsl"
#include "lib/gemm_matrix.glsl"
#include "lib/gemm_strip.glsl"

void main() {
    const Work w = next_work();
    if (w.exists) {
        gemm(w);
    }
}
