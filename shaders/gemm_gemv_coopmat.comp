// gemm_gemv_coopmat: products with few rows, as gemm_gemv.comp has them, on cooperative matrices: an
// instruction instead of some for each number of op(B) and row.
//
//     C = epilogue(alpha * A * op(B) + beta * C), batch by batch
//
//     A      (m, k)  ELEM, last axis contiguous
//     op(B)  (k, n)  ELEM, from B (n, k), last axis contiguous
//     C, R, X, S (m, n) OUT_FORMAT, last axis contiguous; lib/gemm_params.glsl has the epilogue
//
// A subgroup has the sums of BLOCK_M rows and COLS columns over a part of k. The TEAM subgroups that share
// these columns take PIECES pieces of k in turn. A piece is 32 elements: four invocations have 16 bytes of a
// line each, and all loads of a step are in flight at once, first the loads of B.
//
// With IN_PLACE these bytes become operands as they are: where matrices lie as lib/quads.glsl says, invocation
// 4g + t has elements 8t to 8t + 3 of line g for the first matrix of a piece, and 8t + 4 to 8t + 7 for the
// second. So k has another order in both operands, which a sum does not mind. Otherwise pieces go through
// the subgroup's part of shared memory.
//
// Sums of a team meet in shared memory, in a fixed order. With PARTIAL the kernel writes sums of a part of
// k, as in lib/gemm_matrix.glsl.
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
layout(constant_id = 8) const bool TAIL = true;        // k is not a multiple of BLOCK_K
layout(constant_id = 9) const uint GROUP_M = 1;        // see lib/gemm_order.glsl
layout(constant_id = 10) const bool ALONE = true;      // blocks are of one row, and have all of k
layout(constant_id = 11) const bool IN_PLACE = false;  // matrices lie as lib/quads.glsl says
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

const uint LANES = WORKGROUP_SIZE / SUBGROUPS;  // of a subgroup
const uint PIECE = 4 * VEC;
const uint PIECES = BLOCK_K / (TEAM * PIECE);
const uint STEPS = PIECE / MAT_N;               // matrices along k of a piece
const uint COLS = BLOCK_N / (SUBGROUPS / TEAM);
const uint COL_TILES = COLS / MAT_N;
const uint ROW_TILES = (BLOCK_M + MAT_M - 1) / MAT_M;
const uint ROWS = IN_PLACE ? BLOCK_M : ROW_TILES * MAT_M;  // that are loaded
const uint A_LOADS = (ROWS * 4 + LANES - 1) / LANES;    // vectors of a piece
const uint B_LOADS = COLS * 4 / LANES;
const uint TILES = ROW_TILES * COL_TILES;
const uint CHAINS = TILES == 1 ? 2 : 1;  // sums of a number: one need not wait for the other

// A subgroup's part of shared memory: its sums, before them pieces.
const uint LINE = PIECE / VEC + 1;     // uvec4 of a line of a piece, one more, so that lines start in different banks
const uint SUM_LINE = COLS / 4 + 1;    // and of sums, likewise
const uint SUMS_SIZE = ROW_TILES * MAT_M * SUM_LINE;
const uint STAGE_SIZE = IN_PLACE ? 0 : (COLS + ROWS) * LINE;
const uint PART = SUMS_SIZE > STAGE_SIZE ? SUMS_SIZE : STAGE_SIZE;

shared uvec4 tile[SUBGROUPS * PART];

// Elements i to i + VEC - 1 of A or B, which are elements k to k + VEC - 1 of a line.
#define VECTOR(name, i, k) (WHOLE && !TAIL ? name##16[(i) / VEC] : vector_##name(i, k < end ? end - (k) : 0))
uvec4 vector_a(const uint i, const uint n) { return !WHOLE ? load_a(i, n) : n > 0 ? a16[i / VEC] : uvec4(0); }
uvec4 vector_b(const uint i, const uint n) { return !WHOLE ? load_b(i, n) : n > 0 ? b16[i / VEC] : uvec4(0); }

void part_barrier() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

void main() {
    Work w = Work(0, BLOCK_ID * BLOCK_N, gl_WorkGroupID.z, 0, BLOCK_ID < p.tiles);
    if (!ALONE) { // divisions, which take as long as a load
        w = next_work();
    }
    if (!w.exists) {
        return;
    }
    const uint part = gl_SubgroupID * PART;
    const uint line = gl_SubgroupInvocationID / 4;  // of a load
    const uint at = gl_SubgroupInvocationID % 4 * VEC;
    const uint col = w.col + gl_SubgroupID / TEAM * COLS;
    const uint end = min((w.split + 1) * p.split_k, p.k);
    MatC sum[TILES * CHAINS];
    [[unroll]] for (uint i = 0; i < TILES * CHAINS; i++) {
        sum[i] = MatC(0.0);
    }
    // All subgroups take as many turns, for subgroupBarrier, which on lavapipe waits for the workgroup.
    [[dont_unroll]] for (uint first = w.split * p.split_k; first < end; first += BLOCK_K) {
        const uint k0 = first + gl_SubgroupID % TEAM * (PIECES * PIECE) + at;
        uvec4 of_b[PIECES * B_LOADS];
        uvec4 of_a[PIECES * A_LOADS];
        [[unroll]] for (uint i = 0; i < PIECES * B_LOADS; i++) {
            const uint c = min(col + i % B_LOADS * (LANES / 4) + line, p.n - 1);
            const uint k = k0 + i / B_LOADS * PIECE;
            of_b[i] = VECTOR(b, ROW_AT(b, w.batch, c) + k, k);
        }
        [[unroll]] for (uint i = 0; i < PIECES * A_LOADS; i++) {
            const uint row = min(w.row + i % A_LOADS * (LANES / 4) + line, p.m - 1);
            const uint k = k0 + i / A_LOADS * PIECE;
            of_a[i] = VECTOR(a, ROW_AT(a, w.batch, row) + k, k);
        }
        [[unroll]] for (uint i = 0; i < PIECES; i++) {
            if (!IN_PLACE) {
                part_barrier();  // matrices of the piece before are loaded
                [[unroll]] for (uint j = 0; j < B_LOADS; j++) {
                    tile[part + (j * (LANES / 4) + line) * LINE + at / VEC] = of_b[i * B_LOADS + j];
                }
                [[unroll]] for (uint j = 0; j < A_LOADS; j++) {
                    if (j * (LANES / 4) + line < ROWS) {
                        tile[part + (COLS + j * (LANES / 4) + line) * LINE + at / VEC] = of_a[i * A_LOADS + j];
                    }
                }
                part_barrier();  // the piece is in shared memory
            }
            [[unroll]] for (uint s = 0; s < STEPS; s++) {
                const uint x = 2 * s % 4;  // words of a vector
                MatA left[ROW_TILES];
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    if (IN_PLACE) {
                        const uvec4 low = of_a[i * A_LOADS];
                        const uvec4 high = BLOCK_M > 8 ? of_a[i * A_LOADS + A_LOADS - 1] : uvec4(0);
                        left[r] = left_matrix(uvec4(low[x], low[x + 1], high[x], high[x + 1]));
                    } else {
                        coopMatLoad(left[r], tile, part + (COLS + r * MAT_M) * LINE + s * (MAT_N / VEC), LINE, ROW_MAJOR);
                    }
                }
                [[unroll]] for (uint c = 0; c < COL_TILES; c++) {
                    MatB right;
                    if (IN_PLACE) {
                        const uvec4 low = of_b[i * B_LOADS + 2 * c];
                        const uvec4 high = of_b[i * B_LOADS + 2 * c + 1];
                        right = right_matrix(uvec4(low[x], low[x + 1], high[x], high[x + 1]));
                    } else {
                        coopMatLoad(right, tile, part + c * MAT_N * LINE + s * (MAT_N / VEC), LINE, COLUMN_MAJOR);
                    }
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        const uint n = (r * COL_TILES + c) * CHAINS + s % CHAINS;
                        sum[n] = coopMatMulAdd(left[r], right, sum[n]);
                    }
                }
            }
        }
    }
    part_barrier();  // the last piece is loaded before sums are written
    [[unroll]] for (uint i = 0; i < TILES; i++) {
        const MatC all = CHAINS == 1 ? sum[i] : sum[0] + sum[CHAINS - 1];
        coopMatStore(all, tile, part + i / COL_TILES * MAT_M * SUM_LINE + i % COL_TILES * (MAT_N / 4), SUM_LINE, ROW_MAJOR);
    }
    barrier();  // sums are written before they are read
    const uint product = PARTIAL ? w.split * (gl_NumWorkGroups.z / p.splits) + w.batch : w.batch;
    for (uint i = gl_LocalInvocationIndex; i < BLOCK_M * BLOCK_N; i += WORKGROUP_SIZE) {
        const uint row = i / BLOCK_N;
        const uint x = i % BLOCK_N;
        const uint from = x / COLS * (TEAM * PART) + row * SUM_LINE + x % COLS / 4;
        float total = 0.0;
        [[unroll]] for (uint s = 0; s < TEAM; s++) {
            total += uintBitsToFloat(tile[from + s * PART][x % 4]);
        }
        if (w.row + row < p.m && w.col + x < p.n) {
            finish(product, w.row + row, w.col + x, vec4(total), 1);
        }
    }
}
