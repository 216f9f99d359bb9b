// few_rows: sums of products of few rows and the lines of a large operand, on cooperative matrices.
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
// Sums of a team meet in shared memory, in a fixed order.
//
// The includer includes lib/vec16.glsl with a 16-bit format, lib/matrix_types.glsl and lib/packed.glsl, declares the specialization
// constants of gemm_gemv_coopmat.comp that are named here, and has
//
//     row_vector(r, k, n)      elements k to k + VEC - 1 of row r of the block, n of them before the end of k; the rest is 0
//     line_vector(c, k, n)     of the line that column c of the subgroup belongs to, likewise
//     prepared(x, k, squares)  such elements of a row as the product takes them
//
// and defines NORMALIZED if what prepared adds to squares is wanted, in squares_of.
#extension GL_KHR_shader_subgroup_shuffle : require

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
#ifdef NORMALIZED
shared float squares_of[TEAM * ROWS];  // of a row and a subgroup of the first team
#endif

uvec4 row_vector(const uint r, const uint k, const uint n);
uvec4 line_vector(const uint c, const uint k, const uint n);
uvec4 prepared(const uvec4 x, const uint k, inout float squares);

void part_barrier() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

// multiply adds the products of k from begin to end, the end of what is taken of a line. Every invocation calls it.
void multiply(const uint begin, const uint end) {
    const uint part = gl_SubgroupID * PART;
    const uint line = gl_SubgroupInvocationID / 4;  // of a load
    const uint at = gl_SubgroupInvocationID % 4 * VEC;
    float squares[A_LOADS];
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) {
        squares[i] = 0.0;
    }
    MatC sum[TILES * CHAINS];
    [[unroll]] for (uint i = 0; i < TILES * CHAINS; i++) {
        sum[i] = MatC(0.0);
    }
    // All subgroups take as many turns, for subgroupBarrier, which on lavapipe waits for the workgroup.
    [[dont_unroll]] for (uint first = begin; first < end; first += BLOCK_K) {
        const uint k0 = first + gl_SubgroupID % TEAM * (PIECES * PIECE) + at;
        uvec4 of_b[PIECES * B_LOADS];
        uvec4 of_a[PIECES * A_LOADS];
        [[unroll]] for (uint i = 0; i < PIECES * B_LOADS; i++) {
            const uint k = k0 + i / B_LOADS * PIECE;
            of_b[i] = line_vector(i % B_LOADS * (LANES / 4) + line, k, k < end ? end - k : 0);
        }
        [[unroll]] for (uint i = 0; i < PIECES * A_LOADS; i++) {
            const uint k = k0 + i / A_LOADS * PIECE;
            of_a[i] = row_vector(i % A_LOADS * (LANES / 4) + line, k, k < end ? end - k : 0);
        }
        [[unroll]] for (uint i = 0; i < PIECES * A_LOADS; i++) {
            of_a[i] = prepared(of_a[i], k0 + i / A_LOADS * PIECE, squares[i % A_LOADS]);
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
#ifdef NORMALIZED
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) {
        const uint row = i * (LANES / 4) + line;
        squares[i] += subgroupShuffleXor(squares[i], 1);
        squares[i] += subgroupShuffleXor(squares[i], 2);
        if (gl_SubgroupID < TEAM && row < ROWS && at == 0) {
            squares_of[gl_SubgroupID * ROWS + row] = squares[i];
        }
    }
#endif
    barrier();  // sums are written before they are read
}

// total returns the sum of a row of the block and a column of a team's, which the product has.
float total(const uint row, const uint team, const uint c) {
    const uint from = team * (TEAM * PART) + row * SUM_LINE + c / 4;
    float sum = 0.0;
    [[unroll]] for (uint s = 0; s < TEAM; s++) {
        sum += uintBitsToFloat(tile[from + s * PART][c % 4]);
    }
    return sum;
}
