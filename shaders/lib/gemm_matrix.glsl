// gemm_matrix: C = epilogue(alpha * op(A) * op(B) + beta * C) on cooperative
// matrices.
//
// A workgroup computes BLOCK_M x BLOCK_N elements of C, a grid of SUBGROUPS_M x
// SUBGROUPS_N subgroups with TILES_M x TILES_N accumulators each. Slabs of BLOCK_K
// columns of op(A) and rows of op(B) go from memory to registers to shared memory:
//
//     load slab i+1; products of slab i; barrier; store slab i+1; barrier
//
// The products of the last whole slab come after the loop, which has no cases: with an exit
// between its products and its first barrier it was 209 TFLOP/s instead of 320 (4096^3, H200).
// Of the slab at the end of k that is not whole (TAIL), only the products that it needs are
// computed, in chunks. Its loads are on their way during the products before; what is past k
// becomes 0 after them, for a mask right behind a load is a branch around it, which waits.
//
// With PARTIAL, workgroups that share an element of C each have a part of k, and
// write sums that gemm_combine adds up: c1 is (splits, batch, m, c_stride) float32.
//
// With PARTS, operands are float32 in parts of float16, lib/gemm_panels.glsl: BLOCK_K is
// twice the columns of a slab, and products of a matrix of columns meet the sum by an
// addition.
//
// With FRAGMENTS, op(B) is right matrices of gemm_fragments.comp, a panel of slabs for each
// subgroup of a row of them. They come from memory straight into registers, AHEAD of them on
// their way, and op(A) alone passes through shared memory.
//
// The includer declares the specialization constants named here, and includes
// lib/element.glsl and lib/matrix_types.glsl, and after this file what defines store_strip.
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
#ifdef OUT_MATRIX_ID
#include "gemm_results.glsl"
#endif

const uint SLAB_STEPS = DEPTH / MAT_N;  // matrices along k of a slab
#ifdef FRAGMENTS
#include "fragments.glsl"

const uint SLAB_RIGHTS = SLAB_STEPS * TILES_N;              // right matrices that a subgroup needs of a slab
const bool FEW_SUMS = TILES_M * TILES_N < 16;
const uint AHEAD = FEW_SUMS ? 8 : 4;                        // divides SLAB_RIGHTS
const uint TILES_N_2 = TILES_N & (0u - TILES_N);            // the largest power of two that divides TILES_N
const uint CHUNK_STEPS = TILES_N_2 < AHEAD ? AHEAD / TILES_N_2 : 1;  // matrices along k whose right ones are a multiple of AHEAD
const bool EVEN_LINES = WORKGROUP_SIZE % (8 * A_LINE8) == 0;
const bool A_STEPS = FEW_SUMS && EVEN_LINES && A_BY_K && A_ALIGNED;  // copies are equal distances apart; see LOAD_LEFT
#else
const uint CHUNK_STEPS = 1;
#endif

// LOAD_SLAB(k) loads the whole slab at k from memory into a_next and b_next, STORE_SLAB
// puts them into tile, and PRODUCTS adds the products of the slab in tile to sum; with PARTS
// of hi and lo, which a_lo and b_lo are; PRODUCTS_OF(FIRST, COUNT) those of so many rows of
// matrices of op(B) from the first on. RIGHT(b, FIRST, d, j) declares right matrix number j of
// row FIRST + d. Macros, as arrays sized by specialization constants cannot be arguments.
#define LOAD_SLAB(k)                                           \
    [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) { \
        LOAD_LEFT(i, step_to(true, A, k))                      \
    }                                                          \
    LOAD_RIGHT(k)
#define STORE_SLAB                                                                         \
    [[unroll]] for (uint i = 0; i < A_COPIES; i++) {                                       \
        if (is_copy(i, A_LINES * A_LINE8)) {                                               \
            tile[line_of(i, A_LINE8) * A_LD + col_of_copy(i, A_LINE8)] =                   \
                piece(true, A, i, a_next[i * A_WORDS], a_next[i * A_WORDS + A_WORDS - 1]); \
        }                                                                                  \
    }                                                                                      \
    STORE_RIGHT
// LOAD_LEFT(i, step) loads copy number i of op(A), a step from the slab at 0. Registers are few
// with fragments. There its place is computed, with the step inside of it: the compiler would take
// what has none out of the loop, and keep it for each copy. That gains 1 to 2 % with 3 x 4 sums,
// and loses 11 % with 4 x 4, where it spills more (H200).
#ifdef FRAGMENTS
#define LOAD_LEFT(i, step)                                    \
    const uint slab = step;                                   \
    uint at = a_at[i] + slab;                                 \
    if (A_STEPS) {                                            \
        at = min(a_first + i * a_step + slab, a_last + slab); \
    }                                                         \
    a_next[i] = fetch(true, at);
#define LOAD_RIGHT(k)
#define STORE_RIGHT
#define RIGHT(b, FIRST, d, j)                                      \
    const MatB b = right_matrix(ahead[(d * TILES_N + j) % AHEAD]); \
    ahead[(d * TILES_N + j) % AHEAD] = b8[right_at + (d * TILES_N + j + AHEAD) * SUBGROUP_SIZE];
#define END_STEPS(COUNT) right_at += COUNT * TILES_N * SUBGROUP_SIZE;
#else
#define LOAD_LEFT(i, step) a_next[i] = fetch(true, a_at[i] + step);
#define LOAD_RIGHT(k)                                             \
    [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {    \
        b_next[i] = fetch(false, b_at[i] + step_to(false, B, k)); \
    }
#define STORE_RIGHT                                                                         \
    [[unroll]] for (uint i = 0; i < B_COPIES; i++) {                                        \
        if (is_copy(i, B_LINES * B_LINE8)) {                                                \
            tile[B_AT + line_of(i, B_LINE8) * B_LD + col_of_copy(i, B_LINE8)] =             \
                piece(false, B, i, b_next[i * B_WORDS], b_next[i * B_WORDS + B_WORDS - 1]); \
        }                                                                                   \
    }
#define RIGHT(b, FIRST, d, j)                                                                                             \
    MatB b;                                                                                                               \
    if (B_BY_K) {                                                                                                         \
        coopMatLoad(b, tile, B_AT + col * B_LD + (FIRST + d) * (MAT_N / 8), B_LD, gl_CooperativeMatrixLayoutColumnMajor); \
    } else {                                                                                                              \
        coopMatLoad(b, tile, B_AT + (FIRST + d) * MAT_N * B_LD + col / 8, B_LD, gl_CooperativeMatrixLayoutRowMajor);      \
    }
#define END_STEPS(COUNT)
#endif
#define PRODUCTS_OF(FIRST, COUNT)                                                                                                            \
    [[unroll]] for (uint d = 0; d < COUNT; d++) {                                                                                            \
        fence(d);                                                                                                                            \
        MatA a[TILES_M];                                                                                                                     \
        MatA a_lo[TILES_M];                                                                                                                  \
        [[unroll]] for (uint i = 0; i < TILES_M; i++) {                                                                                      \
            const uint row = subgroup_row + i * MAT_M;                                                                                       \
            if (A_BY_K) {                                                                                                                    \
                coopMatLoad(a[i], tile, row * A_LD + (FIRST + d) * (MAT_N / 8), A_LD, gl_CooperativeMatrixLayoutRowMajor);                   \
            } else {                                                                                                                         \
                coopMatLoad(a[i], tile, (FIRST + d) * MAT_N * A_LD + row / 8, A_LD, gl_CooperativeMatrixLayoutColumnMajor);                  \
            }                                                                                                                                \
            if (PARTS) {                                                                                                                     \
                coopMatLoad(a_lo[i], tile, row * A_LD + (DEPTH + (FIRST + d) * MAT_N) / 8, A_LD, gl_CooperativeMatrixLayoutRowMajor);        \
            }                                                                                                                                \
        }                                                                                                                                    \
        [[unroll]] for (uint j = 0; j < TILES_N; j++) {                                                                                      \
            const uint col = subgroup_col + j * MAT_N;                                                                                       \
            RIGHT(b, FIRST, d, j)                                                                                                            \
            MatB b_lo;                                                                                                                       \
            if (PARTS) {                                                                                                                     \
                coopMatLoad(b_lo, tile, B_AT + col * B_LD + (DEPTH + (FIRST + d) * MAT_N) / 8, B_LD, gl_CooperativeMatrixLayoutColumnMajor); \
            }                                                                                                                                \
            [[unroll]] for (uint i = 0; i < TILES_M; i++) {                                                                                  \
                if (PARTS) {                                                                                                                 \
                    const MatC large = coopMatMulAdd(a[i], b, MatC(0.0));                                                                    \
                    const MatC small = coopMatMulAdd(a[i], b_lo, coopMatMulAdd(a_lo[i], b, MatC(0.0)));                                      \
                    [[unroll]] for (uint e = 0; e < MAT_M * MAT_N / SUBGROUP_SIZE; e++) {                                                    \
                        sum[i * TILES_N + j][e] = fma(small[e], 1.0 / LO_SCALE, sum[i * TILES_N + j][e] + large[e]);                         \
                    }                                                                                                                        \
                } else {                                                                                                                     \
                    sum[i * TILES_N + j] = coopMatMulAdd(a[i], b, sum[i * TILES_N + j]);                                                     \
                }                                                                                                                            \
            }                                                                                                                                \
        }                                                                                                                                    \
    }                                                                                                                                        \
    END_STEPS(COUNT)
#define PRODUCTS PRODUCTS_OF(0, SLAB_STEPS)

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
#ifndef FRAGMENTS
    uint b_at[B_COPIES * B_WORDS];
#endif
    [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) {
        a_at[i] = place(true, A, 0, i / A_WORDS, i % A_WORDS);
    }
#ifdef FRAGMENTS
    const uint slabs = (p.k + BLOCK_K - 1) / BLOCK_K;  // of a panel
    const uint panel = p.b_offset / 8 + (w.col + subgroup_col) / SUBGROUP_N * slabs * SLAB_RIGHTS * SUBGROUP_SIZE + gl_SubgroupInvocationID;
    const uint a_first = (A.base + (A.first + line_of(0, A_LINE8)) * A.stride) / 8 + col_of_copy(0, A_LINE8);
    const uint a_last = (A.base + (A.size - 1) * A.stride) / 8 + col_of_copy(0, A_LINE8);
    const uint a_step = WORKGROUP_SIZE / A_LINE8 * A.stride / 8;
    uint right_at = panel + first_k / BLOCK_K * SLAB_RIGHTS * SUBGROUP_SIZE;
    uvec4 ahead[AHEAD];
    [[unroll]] for (uint i = 0; i < AHEAD; i++) {
        ahead[i] = b8[right_at + i * SUBGROUP_SIZE];
    }
#else
    [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {
        b_at[i] = place(false, B, 0, i / B_WORDS, i % B_WORDS);
    }
#endif
    const int left = TAIL ? int(end_k - whole_k) : 0;  // of the slab that is not whole
    const bool any_whole = !TAIL || first_k < whole_k;
    if (any_whole) {
        {
            uvec4 a_next[A_COPIES * A_WORDS];
#ifndef FRAGMENTS
            uvec4 b_next[B_COPIES * B_WORDS];
#endif
            LOAD_SLAB(first_k)
            barrier();  // the strips of the block before are read
            STORE_SLAB
        }
        barrier();  // tile written before it is read
        // Unrolled, this loop only grows.
        [[dont_unroll]] for (uint k0 = first_k + BLOCK_K; k0 < whole_k; k0 += BLOCK_K) {
            // Arrays of the loop: those that come from the slab before are copied amid the
            // products, which waits for their loads.
            uvec4 a_next[A_COPIES * A_WORDS];
#ifndef FRAGMENTS
            uvec4 b_next[B_COPIES * B_WORDS];
#endif
            LOAD_SLAB(k0)
            PRODUCTS
            barrier();  // the slab is read
            STORE_SLAB
            barrier();  // tile written before it is read
        }
    }
    uvec4 a_next[A_COPIES * A_WORDS];
#ifndef FRAGMENTS
    uvec4 b_next[B_COPIES * B_WORDS];
#endif
    if (left > 0) {
        [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) {
            a_next[i] = fetch(true, place(true, A, whole_k, i / A_WORDS, i % A_WORDS));
        }
#ifndef FRAGMENTS
        [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {
            b_next[i] = fetch(false, place(false, B, whole_k, i / B_WORDS, i % B_WORDS));
        }
#endif
    }
    if (any_whole) {
        PRODUCTS
    }
    if (left > 0) {
        [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) {
            a_next[i] = cut(true, A, left, i / A_WORDS, i % A_WORDS, a_next[i]);
        }
#ifndef FRAGMENTS
        [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {
            b_next[i] = cut(false, B, left, i / B_WORDS, i % B_WORDS, b_next[i]);
        }
#endif
        barrier();  // the slab, or the strips of the block before, are read
        STORE_SLAB
        barrier();  // tile written before it is read
        [[dont_unroll]] for (uint first = 0; first * MAT_N < left; first += CHUNK_STEPS) {
            PRODUCTS_OF(first, CHUNK_STEPS)
        }
    }

#ifdef OUT_MATRIX_ID
    if (BY_MATRIX) {
        STORE_RESULTS(sum, w, w.row + subgroup_row, w.col + subgroup_col)
        return;
    }
#endif
    STORE_SUMS(sum, w, w.row + subgroup_row, w.col + subgroup_col)
}

#endif
