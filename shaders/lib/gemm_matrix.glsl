// gemm_matrix: C = epilogue(alpha * op(A) * op(B) + beta * C) on cooperative matrices.
//
// A workgroup computes BLOCK_M x BLOCK_N elements of C, a grid of SUBGROUPS_M x
// SUBGROUPS_N subgroups with TILES_M x TILES_N accumulators each. K-tiles of BLOCK_K
// columns of op(A) and rows of op(B) go from memory to registers to shared memory:
//
//     load k-tile i+1; products of k-tile i; barrier; store k-tile i+1; barrier
//
// The products of the last whole k-tile come after the loop, which has no cases: with an exit
// between its products and its first barrier it was 209 TFLOP/s instead of 320 (4096^3, H200).
// Of the k-tile at the end of k that is not whole (TAIL), only the products that it needs are
// computed, in chunks. Its loads are on their way during the products before; what is past k
// becomes 0 after them, for a mask right behind a load is a branch around it, which waits.
//
// With PARTIAL, workgroups that share an element of C each have a part of k, and
// write sums that gemm_combine adds up: c1 is (splits, batch, m, c_stride) float32.
//
// With F32X2, operands are float32 in parts of float16, lib/gemm_panels.glsl: BLOCK_K is twice the
// columns of a k-tile, and products of a matrix of columns meet the sum by an addition.
//
// With PACKED, op(B) is right matrices that need no shared memory, lib/gemm_k_tile.glsl.
//
// The includer declares the specialization constants named here, and includes
// lib/element.glsl and lib/matrix_types.glsl, and after this file what defines store_strip.
#extension GL_EXT_control_flow_attributes : require

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
#include "gemm_k_tile.glsl"
#ifdef SKINNY_ID
#include "gemm_skinny_matrix.glsl"
#elif defined(RUNS_ID)
#include "gemm_direct.glsl"
#endif

// gemm computes the block of w. Every invocation of the workgroup calls it, for as many blocks as
// it likes: the barrier before a k-tile is stored comes after the strips before are read.
void gemm(Work w) {
    const uint subgroup_row = gl_SubgroupID / SUBGROUPS_N * SUBGROUP_M;  // within the block
    const uint subgroup_col = gl_SubgroupID % SUBGROUPS_N * SUBGROUP_N;
    const Operand A = Operand(p.a_offset + w.batch * p.a_stride_b, p.a_stride, A_SIZE, w.row);
    const Operand B = Operand(p.b_offset + w.batch * p.b_stride_b, p.b_stride, B_SIZE, w.col);
    if (F32X2) {
        load_exponents(A, B);
    }
    const uint first_k = w.split * p.split_k;
    const uint end_k = min(first_k + p.split_k, p.k);
    const uint whole_k = end_k - (end_k - first_k) % BLOCK_K;  // end of the last whole k-tile

    MatC sum[TILES_M * TILES_N];  // (SUBGROUP_M, SUBGROUP_N)
    [[unroll]] for (uint i = 0; i < TILES_M * TILES_N; i++) {
        sum[i] = MatC(0.0);
    }

    uint a_at[A_COPIES * A_WORDS];  // places of the k-tile at 0
#ifndef PACKED
    uint b_at[B_COPIES * B_WORDS];
#endif
    [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) {
        a_at[i] = place(true, A, 0, i / A_WORDS, i % A_WORDS);
    }
#ifdef PACKED
    const uint k_tiles = (p.k + BLOCK_K - 1) / BLOCK_K;  // of a panel
    const uint panel = p.b_offset / 8 + w.batch * (p.b_stride_b / 8) + (w.col + subgroup_col) / SUBGROUP_N * k_tiles * K_TILE_RIGHTS * SUBGROUP_SIZE + gl_SubgroupInvocationID;
    const uint a_first = (A.base + (A.first + line_of(0, A_LINE8)) * A.stride) / 8 + col_of_copy(0, A_LINE8);
    const uint a_last = (A.base + (A.size - 1) * A.stride) / 8 + col_of_copy(0, A_LINE8);
    const uint a_step = WORKGROUP_SIZE / A_LINE8 * A.stride / 8;
    uint right_at = panel + first_k / BLOCK_K * K_TILE_RIGHTS * SUBGROUP_SIZE;
    uvec4 ahead[AHEAD];
    [[unroll]] for (uint i = 0; i < AHEAD; i++) {
        ahead[i] = b8[right_at + i * SUBGROUP_SIZE];
    }
#else
    [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {
        b_at[i] = place(false, B, 0, i / B_WORDS, i % B_WORDS);
    }
#endif
    const int left = TAIL ? int(end_k - whole_k) : 0;  // of the k-tile that is not whole
    const bool any_whole = !TAIL || first_k < whole_k;
    if (any_whole) {
        {
            NEXT_K_TILE
            LOAD_K_TILE(first_k)
            barrier();  // the strips of the block before are read
            STORE_K_TILE
        }
        barrier();  // tile written before it is read
        // Unrolled, this loop only grows.
        [[dont_unroll]] for (uint k0 = first_k + BLOCK_K; k0 < whole_k; k0 += BLOCK_K) {
            // Arrays of the loop: those that come from the k-tile before are copied amid the
            // products, which waits for their loads.
            NEXT_K_TILE
            LOAD_K_TILE(k0)
            PRODUCTS
            barrier();  // the k-tile is read
            STORE_K_TILE
            barrier();  // tile written before it is read
        }
    }
    NEXT_K_TILE
    if (left > 0) {
        [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) {
            a_next[i] = fetch(true, place(true, A, whole_k, i / A_WORDS, i % A_WORDS));
        }
#ifndef PACKED
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
#ifndef PACKED
        [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {
            b_next[i] = cut(false, B, left, i / B_WORDS, i % B_WORDS, b_next[i]);
        }
#endif
        barrier();  // the k-tile, or the strips of the block before, are read
        STORE_K_TILE
        barrier();  // tile written before it is read
        [[dont_unroll]] for (uint first = 0; first * MAT_N < left; first += CHUNK_STEPS) {
            PRODUCTS_OF(first, CHUNK_STEPS)
        }
    }

#if defined(RUNS_ID) && !defined(SKINNY_ID)
    if (DEALT) {
        STORE_DIRECT(sum, w, w.row + subgroup_row, w.col + subgroup_col)
        return;
    }
#endif
#ifdef OUT_MATRIX_ID
    if (BY_MATRIX) {
        STORE_RESULTS(sum, w, w.row + subgroup_row, w.col + subgroup_col)
        return;
    }
#endif
#ifdef SKINNY_ID
    if (KEEP_X && !KEEP_STRIPS) {
        KEEP_SUMS(sum, w, w.row + subgroup_row, w.col + subgroup_col)
    }
    if (BY_SKINNY) {
        STORE_SKINNY(sum, w, w.row + subgroup_row, w.col + subgroup_col)
        STORE_STRIPS(sum, w, w.row + subgroup_row, w.col + subgroup_col)
        return;
    }
#endif
    STORE_SUMS(sum, w, w.row + subgroup_row, w.col + subgroup_col)
}
