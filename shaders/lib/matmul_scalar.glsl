// matmul_scalar: products of tiles in shared memory on plain float32
// arithmetic, a micro-tile of the result for each invocation.
//
// The invocations of a workgroup form a grid of THREADS_Y rows by THREADS_X columns. Invocation
// (ty, tx) owns the rows ty*ROWS .. ty*ROWS + ROWS-1 of a result, and
//
//     in product_nt  the columns tx, tx + THREADS_X, ...                 (COLS of them)
//     in product_nn  the vec4 columns tx, tx + THREADS_X, ...            (COLS4 of them)
//
// so that neighbours read neighbouring addresses. The includer declares those
// constants, `shared vec4 tile[]` and its offsets in it (in vec4), and puts
// barriers around the calls: both only read tile.
#extension GL_EXT_control_flow_attributes : require

// Micro-tiles of results; structs, as arrays sized by specialization constants
// do not match as arguments.
struct TileNT { float at[ROWS * COLS]; };
struct TileNN { vec4 at[ROWS * COLS4]; };

// product_nt adds A * B^T: rows of A start at a + row * ld, rows of B at
// b + row * ld, and `depth4` vec4 of each are multiplied.
void product_nt(inout TileNT acc, const uint a, const uint b, const uint ld, const uint depth4) {
    const uint ty = gl_LocalInvocationIndex / THREADS_X;
    const uint tx = gl_LocalInvocationIndex % THREADS_X;
    for (uint k = 0; k < depth4; k++) {
        vec4 x[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            x[i] = tile[a + (ty * ROWS + i) * ld + k];
        }
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            const vec4 y = tile[b + (tx + j * THREADS_X) * ld + k];
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                acc.at[i * COLS + j] = fma(x[i].w, y.w, fma(x[i].z, y.z, fma(x[i].y, y.y, fma(x[i].x, y.x, acc.at[i * COLS + j]))));
            }
        }
    }
}

// product_nn adds A * B: row r of A starts at a + r * a_ld and `depth4` vec4
// of it are used; row n of B, for n < 4 * depth4, starts at b + n * b_ld.
void product_nn(inout TileNN acc, const uint a, const uint a_ld, const uint b, const uint b_ld, const uint depth4) {
    const uint ty = gl_LocalInvocationIndex / THREADS_X;
    const uint tx = gl_LocalInvocationIndex % THREADS_X;
    for (uint k = 0; k < depth4; k++) {
        vec4 x[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            x[i] = tile[a + (ty * ROWS + i) * a_ld + k];
        }
        [[unroll]] for (uint j = 0; j < COLS4; j++) {
            [[unroll]] for (uint e = 0; e < 4; e++) {
                const vec4 y = tile[b + (4 * k + e) * b_ld + tx + j * THREADS_X];
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    acc.at[i * COLS4 + j] = fma(vec4(x[i][e]), y, acc.at[i * COLS4 + j]);
                }
            }
        }
    }
}
