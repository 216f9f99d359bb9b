// gemm_pair: two matrix products on cooperative matrices, back to back (B2B GEMM). The first
// product never reaches memory.
//
//     C = epilogue(silu(X * W1) * W2)
//
//     X   (m, in)         packed as left matrices, by gemm_pack: panels of TILES_M
//     W1  (in, hidden)    packed as right matrices: panels of HIDDEN_N
//     W2  (hidden, n)     likewise: panels of TILES_N, groups of CHUNK hidden units
//     C   (m, n)          OUT_FORMAT, last axis contiguous; lib/gemm_params.glsl has the epilogue
//
// In lib/gemm_params.glsl A is X, and B is W1 with W2 right behind it. in is a_stride, hidden is k;
// both are filled with zeros to whole matrices and chunks. silu(X * W1) is rounded to ELEM.
//
// A workgroup owns BLOCK_M rows of C and all columns, a subgroup TILES_M x TILES_N matrices of
// its sums, in registers. It goes through the hidden units in chunks:
//
//     S = X * W1[:, chunk]       a grid of subgroups, HIDDEN_M x HIDDEN_N matrices each
//     H = silu(S)                to shared memory; barrier
//     C += H * W2[chunk, :]      every subgroup all rows, its own columns
//
// Right matrices come from memory straight into registers, with AHEAD of them in flight: no
// other subgroup needs the matrices of W2, and few need the matrices of W1. The register that a
// product frees takes the matrix AHEAD further on, across the end of a chunk: W2's first follow W1's
// last. The first SHARED_STEPS columns of matrices of X are in shared memory, the rest come
// from the cache. H is read in the order in which it was written, because left matrices keep
// their elements where accumulators do; the host checks that.
//
// With PARTIAL, workgroups that share rows each have a part of the hidden units, as in
// lib/gemm_matrix.glsl.
//
// Dispatch: (x, y, splits) with x * y >= tiles.
#version 460
#include "lib/matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;
layout(constant_id = 1) const uint SUBGROUPS_N = 8;  // side by side along the columns of C
layout(constant_id = 2) const uint MAT_M = 16;       // the same as MAT_N
layout(constant_id = 3) const uint MAT_N = 16;
layout(constant_id = 4) const uint TILES_M = 4;      // accumulators of a subgroup, of C
layout(constant_id = 5) const uint TILES_N = 4;
layout(constant_id = 6) const uint HIDDEN_M = 2;     // and of S
layout(constant_id = 7) const uint HIDDEN_N = 1;
layout(constant_id = 8) const uint SHARED_STEPS = 16;  // columns of matrices of X in shared memory
layout(constant_id = 9) const uint AHEAD = 8;          // right matrices on their way
layout(constant_id = 10) const uint LOAD_AHEAD = 0;    // left matrices are loaded at most this many steps ahead, 0: any
layout(constant_id = 11) const bool DOUBLE = false;    // a second H: one barrier for a chunk instead of two
layout(constant_id = 12) const bool PARTIAL = false;   // writes sums of a part of the hidden units
layout(local_size_x_id = 0) in;

#define EPILOGUE_ID 13
const uint SUBGROUPS_M = 1;
#include "lib/gemm_tensors.glsl"
#include "lib/packed.glsl"
#include "lib/copies.glsl"
#include "lib/fence.glsl"
#include "lib/pack2.glsl"
#include "lib/silu.glsl"

const uint GROUP_M = 1;
#include "lib/gemm_order.glsl"

const uint HIDDEN_ROWS = TILES_M / HIDDEN_M;            // of the grid of subgroups for S
const uint HIDDEN_COLS = SUBGROUPS_N / HIDDEN_ROWS;
const uint CHUNK_STEPS = HIDDEN_COLS * HIDDEN_N;        // columns of matrices of S and H
const uint CHUNK = CHUNK_STEPS * MAT_N;                 // hidden units
const uint IN_STEPS = AHEAD / HIDDEN_N;                 // steps along k that AHEAD matrices are for: of the first product
const uint OUT_STEPS = AHEAD / TILES_N;                 // of the second
const uint STEP_SIZE = TILES_M * SUBGROUP_SIZE;         // uvec4 of a column of matrices of X or H
const uint H_AT = SHARED_STEPS * STEP_SIZE;             // where H begins in tile, behind X
const uint X_COPIES = (H_AT + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint H_SIZE = CHUNK_STEPS * STEP_SIZE;
const uint OPERANDS_SIZE = H_AT + (DOUBLE ? 2 : 1) * H_SIZE;
#include "lib/gemm_sums.glsl"
#include "lib/gemm_strip.glsl"

// silu_words returns silu of an accumulator's elements, rounded to ELEM.
uvec4 silu_words(const MatC s) {
    const vec4 lo = silu(vec4(s[0], s[1], s[2], s[3]));
    const vec4 hi = silu(vec4(s[4], s[5], s[6], s[7]));
    return uvec4(pack2(lo.x, lo.y), pack2(lo.z, lo.w), pack2(hi.x, hi.y), pack2(hi.z, hi.w));
}

void main() {
    Work w = next_work();
    if (!w.exists) {
        return;
    }
    const uint lane = gl_SubgroupInvocationID;
    const uint hidden_row = gl_SubgroupID / HIDDEN_COLS * HIDDEN_M;  // in matrices, within S
    const uint hidden_col = gl_SubgroupID % HIDDEN_COLS * HIDDEN_N;
    const uint steps = p.a_stride / MAT_N;  // of the first product
    const uint first = w.split * p.split_k;
    const uint end = min(first + p.split_k, p.k);

    // Where this invocation's elements of the first matrix are, and how many uvec4 a chunk has.
    const uint x_at = (p.a_offset + w.row * p.a_stride) / 8 + lane;
    const uint w1_at = p.b_offset / 8 + hidden_col * steps * SUBGROUP_SIZE + lane;
    const uint w2_at = (p.b_offset + p.k * p.a_stride) / 8 + gl_SubgroupID * CHUNK_STEPS * TILES_N * SUBGROUP_SIZE + lane;
    const uint w1_chunk = CHUNK_STEPS * steps * SUBGROUP_SIZE;
    const uint w2_chunk = CHUNK_STEPS * SUBGROUPS_N * TILES_N * SUBGROUP_SIZE;

    uvec4 ahead[AHEAD];
    [[unroll]] for (uint i = 0; i < AHEAD; i++) {
        ahead[i] = b8[w1_at + first / CHUNK * w1_chunk + i * SUBGROUP_SIZE];
    }
    [[unroll]] for (uint i = 0; i < X_COPIES; i++) {
        if (is_copy(i, H_AT)) {
            tile[i * WORKGROUP_SIZE + gl_LocalInvocationIndex] = a8[x_at - lane + i * WORKGROUP_SIZE + gl_LocalInvocationIndex];
        }
    }
    MatC sum[TILES_M * TILES_N];  // (SUBGROUP_M, SUBGROUP_N)
    [[unroll]] for (uint i = 0; i < TILES_M * TILES_N; i++) {
        sum[i] = MatC(0.0);
    }
    barrier();  // X written before it is read

    [[dont_unroll]] for (uint unit = first; unit < end; unit += CHUNK) {
        const uint chunk = unit / CHUNK;
        MatC s[HIDDEN_M * HIDDEN_N];
        [[unroll]] for (uint i = 0; i < HIDDEN_M * HIDDEN_N; i++) {
            s[i] = MatC(0.0);
        }
        uint at = w1_at + chunk * w1_chunk;  // of the first of ahead
        // Two phases, unrolled: X from shared memory, then from the cache.
        [[unroll]] for (uint phase = 0; phase < 2; phase++) {
            const bool SHARED = phase == 0;
            [[dont_unroll]] for (uint step = SHARED ? 0 : SHARED_STEPS; step < (SHARED ? SHARED_STEPS : steps); step += IN_STEPS) {
                at += AHEAD * SUBGROUP_SIZE;
                const uint next = step + IN_STEPS < steps ? at : w2_at + chunk * w2_chunk;
                [[unroll]] for (uint i = 0; i < IN_STEPS; i++) {
                    fence(i);
                    MatA a[HIDDEN_M];
                    [[unroll]] for (uint r = 0; r < HIDDEN_M; r++) {
                        const uint x = (step + i) * STEP_SIZE + (hidden_row + r) * SUBGROUP_SIZE;
                        a[r] = left_matrix(SHARED ? tile[x + lane] : a8[x_at + x]);
                    }
                    [[unroll]] for (uint j = 0; j < HIDDEN_N; j++) {
                        const MatB b = right_matrix(ahead[i * HIDDEN_N + j]);
                        ahead[i * HIDDEN_N + j] = b8[next + (i * HIDDEN_N + j) * SUBGROUP_SIZE];
                        [[unroll]] for (uint r = 0; r < HIDDEN_M; r++) {
                            s[r * HIDDEN_N + j] = coopMatMulAdd(a[r], b, s[r * HIDDEN_N + j]);
                        }
                    }
                }
            }
        }

        const uint h_at = H_AT + (DOUBLE ? chunk % 2 * H_SIZE : 0) + lane;
        if (!DOUBLE) {
            barrier();  // H of the chunk before is read
        }
        [[unroll]] for (uint j = 0; j < HIDDEN_N; j++) {
            [[unroll]] for (uint r = 0; r < HIDDEN_M; r++) {
                tile[h_at + (hidden_col + j) * STEP_SIZE + (hidden_row + r) * SUBGROUP_SIZE] = silu_words(s[r * HIDDEN_N + j]);
            }
        }
        barrier();  // H written before it is read; with DOUBLE also: the one before is read

        // After the last chunk, the first again: a wasted load is cheaper than a branch.
        const uint following = w1_at + (unit + CHUNK < end ? chunk + 1 : first / CHUNK) * w1_chunk;
        at = w2_at + chunk * w2_chunk;
        [[dont_unroll]] for (uint step = 0; step < CHUNK_STEPS; step += OUT_STEPS) {
            at += AHEAD * SUBGROUP_SIZE;
            const uint next = step + OUT_STEPS < CHUNK_STEPS ? at : following;
            [[unroll]] for (uint i = 0; i < OUT_STEPS; i++) {
                fence(i);
                MatA a[TILES_M];
                [[unroll]] for (uint r = 0; r < TILES_M; r++) {
                    a[r] = left_matrix(tile[h_at + (step + i) * STEP_SIZE + r * SUBGROUP_SIZE]);
                }
                [[unroll]] for (uint j = 0; j < TILES_N; j++) {
                    const MatB b = right_matrix(ahead[i * TILES_N + j]);
                    ahead[i * TILES_N + j] = b8[next + (i * TILES_N + j) * SUBGROUP_SIZE];
                    [[unroll]] for (uint r = 0; r < TILES_M; r++) {
                        sum[r * TILES_N + j] = coopMatMulAdd(a[r], b, sum[r * TILES_N + j]);
                    }
                }
            }
        }
    }
    STORE_SUMS(sum, w, w.row, gl_SubgroupID * SUBGROUP_N)
}
