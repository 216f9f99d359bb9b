// gemm_matrix: C = epilogue(alpha * op(A) * op(B) + beta * C) on cooperative
// matrices.
//
// A workgroup computes BLOCK_M x BLOCK_N elements of C, a grid of SUBGROUPS_M x
// SUBGROUPS_N subgroups with TILES_M x TILES_N accumulators each. Slabs of BLOCK_K
// columns of op(A) and rows of op(B) go from memory to registers to shared memory:
//
//     load slab i+1; products of slab i; barrier; store slab i+1; barrier
//
// or with HALVES, where stores stand amid products, of columns of matrices numbered 0 to
// n - 1 of a slab:
//
//     load slab i+1
//     products 1 to n/2 - 1; barrier; product n/2;        store half 0 of slab i+1
//     products to n - 1;     barrier; 0 of slab i+1;      store half 1
//
// The slab at the end of k that is not whole (TAIL) comes first, and the products of the
// last one come after the loop, which has no cases: with an exit between its products and
// its first barrier it was 209 TFLOP/s instead of 320 (4096^3, H200).
//
// With PARTIAL, workgroups that share an element of C each have a part of k, and
// write sums that gemm_combine adds up: c1 is (splits, batch, m, c_stride) float32.
//
// With PARTS, operands are float32 in parts of float16, lib/gemm_panels.glsl: BLOCK_K is
// twice the columns of a slab, and products of a matrix of columns meet the sum by an
// addition.
//
// The includer declares the specialization constants named here, and includes
// lib/element.glsl and lib/matrix_types.glsl, and after this file what defines fetch_strip
// and store_strip.
#ifndef LIB_GEMM_MATRIX_GLSL
#define LIB_GEMM_MATRIX_GLSL

#include "gemm_grid.glsl"
#include "fence.glsl"
#include "copies.glsl"
#include "load8_shift.glsl"
#include "gemm_order.glsl"
#include "gemm_operand.glsl"
#include "gemm_sums.glsl"
#include "gemm_panels.glsl"

const uint K_STEPS = DEPTH / MAT_N;  // columns of matrices of a slab
const uint WHOLE = 2;                // both halves of a slab

// half_of returns the half of the slab, along k, that has copy number i of A or B.
uint half_of(const bool IS_A, const uint i) {
    const uint line8 = line8_of(IS_A);
    if (by_k(IS_A)) {
        return col_of_copy(i, line8) * 16 / BLOCK_K;
    }
    const uint lines = WORKGROUP_SIZE / line8;  // of a round of the workgroup
    const bool SAME = WORKGROUP_SIZE % line8 == 0 && BLOCK_K / 2 % max(lines, 1) == 0;
    return (SAME ? i * lines : line_of(i, line8)) / (BLOCK_K / 2);
}

// LOAD_SLAB(k) loads the whole slab at k from memory into a_next and b_next, STORE_PARTS puts
// a half of them into tile, or WHOLE, and STEPS adds products of the slab in tile to sum, some
// columns of matrices of op(A); with PARTS of hi and lo, which a_lo and b_lo are. Macros, as
// arrays sized by specialization constants cannot be arguments.
#define LOAD_SLAB(k)                                              \
    [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) {    \
        a_next[i] = fetch(true, a_at[i] + step_to(true, A, k));   \
    }                                                             \
    [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {    \
        b_next[i] = fetch(false, b_at[i] + step_to(false, B, k)); \
    }
#define STORE_PARTS(part)                                                                       \
    [[unroll]] for (uint i = 0; i < A_COPIES; i++) {                                            \
        if (is_copy(i, A_LINES * A_LINE8) && (part == WHOLE || half_of(true, i) == part)) {     \
            tile[line_of(i, A_LINE8) * A_LD + col_of_copy(i, A_LINE8)] =                        \
                piece(true, A, i, a_next[i * A_WORDS], a_next[i * A_WORDS + A_WORDS - 1]);      \
        }                                                                                       \
    }                                                                                           \
    [[unroll]] for (uint i = 0; i < B_COPIES; i++) {                                            \
        if (is_copy(i, B_LINES * B_LINE8) && (part == WHOLE || half_of(false, i) == part)) {    \
            tile[B_AT + line_of(i, B_LINE8) * B_LD + col_of_copy(i, B_LINE8)] =                 \
                piece(false, B, i, b_next[i * B_WORDS], b_next[i * B_WORDS + B_WORDS - 1]);     \
        }                                                                                       \
    }
#define STEP(d)                                                                                                                    \
    {                                                                                                                              \
        fence(d);                                                                                                                  \
        MatA a[TILES_M];                                                                                                           \
        MatA a_lo[TILES_M];                                                                                                        \
        [[unroll]] for (uint i = 0; i < TILES_M; i++) {                                                                            \
            const uint row = subgroup_row + i * MAT_M;                                                                             \
            if (A_BY_K) {                                                                                                          \
                coopMatLoad(a[i], tile, row * A_LD + d * (MAT_N / 8), A_LD, gl_CooperativeMatrixLayoutRowMajor);                   \
            } else {                                                                                                               \
                coopMatLoad(a[i], tile, d * MAT_N * A_LD + row / 8, A_LD, gl_CooperativeMatrixLayoutColumnMajor);                  \
            }                                                                                                                      \
            if (PARTS) {                                                                                                           \
                coopMatLoad(a_lo[i], tile, row * A_LD + (DEPTH + d * MAT_N) / 8, A_LD, gl_CooperativeMatrixLayoutRowMajor);        \
            }                                                                                                                      \
        }                                                                                                                          \
        [[unroll]] for (uint j = 0; j < TILES_N; j++) {                                                                            \
            const uint col = subgroup_col + j * MAT_N;                                                                             \
            MatB b;                                                                                                                \
            if (B_BY_K) {                                                                                                          \
                coopMatLoad(b, tile, B_AT + col * B_LD + d * (MAT_N / 8), B_LD, gl_CooperativeMatrixLayoutColumnMajor);            \
            } else {                                                                                                               \
                coopMatLoad(b, tile, B_AT + d * MAT_N * B_LD + col / 8, B_LD, gl_CooperativeMatrixLayoutRowMajor);                 \
            }                                                                                                                      \
            MatB b_lo;                                                                                                             \
            if (PARTS) {                                                                                                           \
                coopMatLoad(b_lo, tile, B_AT + col * B_LD + (DEPTH + d * MAT_N) / 8, B_LD, gl_CooperativeMatrixLayoutColumnMajor); \
            }                                                                                                                      \
            [[unroll]] for (uint i = 0; i < TILES_M; i++) {                                                                        \
                if (PARTS) {                                                                                                       \
                    const MatC large = coopMatMulAdd(a[i], b, MatC(0.0));                                                          \
                    const MatC small = coopMatMulAdd(a[i], b_lo, coopMatMulAdd(a_lo[i], b, MatC(0.0)));                            \
                    [[unroll]] for (uint e = 0; e < MAT_M * MAT_N / SUBGROUP_SIZE; e++) {                                          \
                        sum[i * TILES_N + j][e] = fma(small[e], 1.0 / LO_SCALE, sum[i * TILES_N + j][e] + large[e]);               \
                    }                                                                                                              \
                } else {                                                                                                           \
                    sum[i * TILES_N + j] = coopMatMulAdd(a[i], b, sum[i * TILES_N + j]);                                           \
                }                                                                                                                  \
            }                                                                                                                      \
        }                                                                                                                          \
    }
#define STEPS(from, to)                                 \
    [[unroll]] for (uint d = from; d < to; d++) {       \
        STEP(d)                                         \
    }

// gemm computes the block of w. Every invocation of the workgroup calls it, for as many
// blocks as it likes: the barrier before a slab is stored comes after the strips before
// are read.
void gemm(Work w) {
    const uint subgroup_row = gl_SubgroupID / SUBGROUPS_N * SUBGROUP_M;  // within the block
    const uint subgroup_col = gl_SubgroupID % SUBGROUPS_N * SUBGROUP_N;
    const Operand A = Operand(p.a_offset + w.batch * p.a_stride_b, p.a_stride, A_SIZE, w.row);
    const Operand B = Operand(p.b_offset + w.batch * p.b_stride_b, p.b_stride, B_SIZE, w.col);
    if (PARTS) {
        load_exponents(A, B);
    }
    const uint first_k = w.split * p.split_k;
    const uint end_k = min(first_k + p.split_k, p.k);
    const uint whole_k = end_k - (end_k - first_k) % BLOCK_K;  // end of the last whole slab

    MatC sum[TILES_M * TILES_N];  // (SUBGROUP_M, SUBGROUP_N)
    [[unroll]] for (uint i = 0; i < TILES_M * TILES_N; i++) {
        sum[i] = MatC(0.0);
    }

    uint a_at[A_COPIES * A_WORDS];  // places of the slab at 0
    uint b_at[B_COPIES * B_WORDS];
    [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) {
        a_at[i] = place(true, A, 0, i / A_WORDS, i % A_WORDS);
    }
    [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {
        b_at[i] = place(false, B, 0, i / B_WORDS, i % B_WORDS);
    }
    uint k0 = first_k;  // the next slab to load
    {
        uvec4 a_next[A_COPIES * A_WORDS];
        uvec4 b_next[B_COPIES * B_WORDS];
        const int left = int(end_k - whole_k);
        if (TAIL && (left > 0 || end_k == first_k)) {  // no k at all is a slab of zeros
            [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) {
                const uvec4 x = fetch(true, place(true, A, whole_k, i / A_WORDS, i % A_WORDS));
                a_next[i] = cut(true, A, left, i / A_WORDS, i % A_WORDS, x);
            }
            [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {
                const uvec4 x = fetch(false, place(false, B, whole_k, i / B_WORDS, i % B_WORDS));
                b_next[i] = cut(false, B, left, i / B_WORDS, i % B_WORDS, x);
            }
        } else {
            LOAD_SLAB(k0)
            k0 += BLOCK_K;
        }
        barrier();  // the strips of the block before are read
        STORE_PARTS(WHOLE)
    }
    barrier();  // tile written before it is read
    if (HALVES) {
        STEP(0)
        [[dont_unroll]] for (; k0 < whole_k; k0 += BLOCK_K) {
            uvec4 a_next[A_COPIES * A_WORDS];
            uvec4 b_next[B_COPIES * B_WORDS];
            LOAD_SLAB(k0)
            STEPS(1, K_STEPS / 2)
            barrier();  // half 0 is read, half 1 written before it is read
            STEP(K_STEPS / 2)
            STORE_PARTS(0)
            STEPS(K_STEPS / 2 + 1, K_STEPS)
            barrier();  // likewise with halves 1 and 0
            STEP(0)
            STORE_PARTS(1)
        }
        fetch_strip(w, w.row + subgroup_row, w.col + subgroup_col, 0);
        STEPS(1, K_STEPS / 2)
        barrier();  // half 1 written before it is read
        STEPS(K_STEPS / 2, K_STEPS)
    } else {
        // Unrolled, this loop only grows.
        [[dont_unroll]] for (; k0 < whole_k; k0 += BLOCK_K) {
            // Arrays of the loop: those that come from the slab before are copied amid the
            // products, which waits for their loads.
            uvec4 a_next[A_COPIES * A_WORDS];
            uvec4 b_next[B_COPIES * B_WORDS];
            LOAD_SLAB(k0)
            STEPS(0, K_STEPS)
            barrier();  // the slab is read
            STORE_PARTS(WHOLE)
            barrier();  // tile written before it is read
        }
        fetch_strip(w, w.row + subgroup_row, w.col + subgroup_col, 0);
        STEPS(0, K_STEPS)
    }

    STORE_SUMS(sum, w, w.row + subgroup_row, w.col + subgroup_col)
}

#endif
