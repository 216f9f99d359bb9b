// gemm_scalar: matrix products in plain float32 arithmetic, with an epilogue.
//
//     C = epilogue(alpha * op(A) * op(B) + beta * C), batch by batch
//
//     op(A)  (m, k)  ELEM, from A (m, k) with A_BY_K, else (k, m); last axis contiguous
//     op(B)  (k, n)  ELEM, from B (n, k) with B_BY_K, else (k, n); likewise
//     C, R, X, S (m, n) OUT_FORMAT, last axis contiguous; lib/gemm_params.glsl has the epilogue
//
// With PARTIAL it writes sums of a part of k, as in lib/gemm_matrix.glsl.
//
// Dispatch: (x, y, batch * splits) with x * y >= tiles. With GROUP it is many products in one
// launch (lib/gemm_params.glsl), (x, y, 1) with x * y >= the tiles of all.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint THREADS_X = 16;
layout(constant_id = 2) const uint BLOCK_M = 64;
layout(constant_id = 3) const uint BLOCK_N = 64;
layout(constant_id = 4) const uint BLOCK_K = 16;
layout(constant_id = 5) const uint GROUP_M = 8;      // see lib/gemm_order.glsl
layout(constant_id = 6) const bool A_BY_K = true;    // k is A's contiguous axis
layout(constant_id = 7) const bool B_BY_K = false;
layout(constant_id = 8) const bool PARTIAL = false;  // writes sums of a part of k
layout(local_size_x_id = 0) in;

#define EPILOGUE_ID 9
#define GROUP_BINDING 6
#include "lib/element.glsl"
#include "lib/formats.glsl"
#include "lib/gemm_params.glsl"

layout(binding = 0, scalar) readonly buffer A { ELEM a[]; };
layout(binding = 1, scalar) readonly buffer B { ELEM b[]; };
#define OUT_BINDING 2
#include "lib/gemm_out.glsl"

const uint THREADS_Y = WORKGROUP_SIZE / THREADS_X;
const uint ROWS = BLOCK_M / THREADS_Y;
const uint COLS = BLOCK_N / THREADS_X;
const uint COLS4 = 1;             // product_nn is not used
const uint LD = BLOCK_K / 4 + 1;  // one more, so that rows start in different banks
const uint B_AT = BLOCK_M * LD;
shared vec4 tile[(BLOCK_M + BLOCK_N) * LD];  // rows of op(A), then columns of op(B), along k

#include "lib/matmul_scalar.glsl"
#include "lib/gemm_order.glsl"
#include "lib/gemm_epilogue.glsl"

// stage_a copies the k-tile of A at k0 into tile: zeros outside op(A). Neighbouring
// invocations read neighbouring elements.
void stage_a(const uint base, const uint row0, const uint k0) {
    for (uint i = gl_LocalInvocationIndex; i < BLOCK_M * BLOCK_K; i += WORKGROUP_SIZE) {
        const uint row = A_BY_K ? i / BLOCK_K : i % BLOCK_M;
        const uint k = A_BY_K ? i % BLOCK_K : i / BLOCK_M;
        float x = 0.0;
        if (row0 + row < p.m && k0 + k < p.k) {
            x = WIDEN(a[base + (A_BY_K ? (row0 + row) * p.a_stride + k0 + k : (k0 + k) * p.a_stride + row0 + row)]);
        }
        tile[row * LD + k / 4][k % 4] = x;
    }
}

void stage_b(const uint base, const uint col0, const uint k0) {
    for (uint i = gl_LocalInvocationIndex; i < BLOCK_N * BLOCK_K; i += WORKGROUP_SIZE) {
        const uint col = B_BY_K ? i / BLOCK_K : i % BLOCK_N;
        const uint k = B_BY_K ? i % BLOCK_K : i / BLOCK_N;
        float x = 0.0;
        if (col0 + col < p.n && k0 + k < p.k) {
            x = WIDEN(b[base + (B_BY_K ? (col0 + col) * p.b_stride + k0 + k : (k0 + k) * p.b_stride + col0 + col)]);
        }
        tile[B_AT + col * LD + k / 4][k % 4] = x;
    }
}

void main() {
    Work w = next_work();
    if (!w.exists) {
        return;
    }
    TileNT sum;  // (ROWS, COLS)
    [[unroll]] for (uint i = 0; i < ROWS * COLS; i++) {
        sum.at[i] = 0.0;
    }
    const uint end_k = min((w.split + 1) * p.split_k, p.k);
    [[dont_unroll]] for (uint k0 = w.split * p.split_k; k0 < end_k; k0 += BLOCK_K) {
        barrier();  // the k-tile before is read
        stage_a(p.a_offset + w.batch * p.a_stride_b, w.row, k0);
        stage_b(p.b_offset + w.batch * p.b_stride_b, w.col, k0);
        barrier();  // tile written before it is read
        product_nt(sum, 0, B_AT, LD, BLOCK_K / 4);
    }
    const uint product = PARTIAL ? w.split * (gl_NumWorkGroups.z / p.splits) + w.batch : w.batch;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            const uint row = w.row + gl_LocalInvocationIndex / THREADS_X * ROWS + i;
            const uint col = w.col + gl_LocalInvocationIndex % THREADS_X + j * THREADS_X;
            if (row < p.m && col < p.n) {
                finish(product, row, col, vec4(sum.at[i * COLS + j]), 1);
            }
        }
    }
}
