// bwd_scalar: the common part of the backward kernels on plain float32 arithmetic. A workgroup owns
// BLOCK_M rows of Q and dO, or of K and V, and walks over tiles of BLOCK_N rows of the two others:
//
//     S, dP = owned * walked^T           product
//     P, dX, element by element          the kernel itself
//     dQ, dK, dV += weights * walked     put_weights, accumulate
//
// The includer declares the specialization constants, BLOCK_M and BLOCK_N, and includes
// lib/bwd_scalar_inputs.glsl. Every invocation of the workgroup calls product and accumulate.
//
// With FEATURES, V and dO have rows of VALUE_DIM, and the includer declares `const bool
// WALKED_HIDES`. It then sets `shown` to 1 before product for the rows of walked that
// weights may multiply. Hidden rows have weights of 0, but 0 * NaN is NaN.

#include "softmax.glsl"
#include "mask.glsl"
#include "feature_gradients.glsl"

const uint THREADS_Y = WORKGROUP_SIZE / THREADS_X;
const uint ROWS = BLOCK_M / THREADS_Y;                      // of owned, for one invocation
const uint COLS = BLOCK_N / THREADS_X;                   // of walked
const uint DIM4 = HEAD_DIM / 4;                         // vec4 of one row
#ifdef FEATURES
const uint VALUE_DIM4 = VALUE_DIM / 4;
const uint MAX_DIM4 = DIM4 > VALUE_DIM4 ? DIM4 : VALUE_DIM4;
#define DIM4_OF(tensor) ((tensor) == TENSOR_V || (tensor) == TENSOR_DO ? VALUE_DIM4 : DIM4)
shared uint shown[WALKED_HIDES ? BLOCK_N : 1];
#else
#define MAX_DIM4 DIM4
#define DIM4_OF(tensor) DIM4
#endif
const uint COLS4 = (MAX_DIM4 + THREADS_X - 1) / THREADS_X;  // vec4 columns of a gradient for one invocation

// Columns of owned and walked, and later rows of walked, share the first part of the tile; the
// weights have the second.
const uint PAIR_LD = DEPTH / 4 + 1;  // one more, so that rows start in different banks
const uint WALKED_AT = BLOCK_M * PAIR_LD;
const uint STAGE_LD = COLS4 * THREADS_X;
const uint PAIR_SIZE = (BLOCK_M + BLOCK_N) * PAIR_LD;
const uint STAGE_SIZE = STAGE_ROWS * STAGE_LD;
const uint WEIGHTS_AT = PAIR_SIZE > STAGE_SIZE ? PAIR_SIZE : STAGE_SIZE;
const uint WEIGHTS_LD = BLOCK_N / 4 + 1;
shared vec4 tile[WEIGHTS_AT + BLOCK_M * WEIGHTS_LD];

#include "matmul_scalar.glsl"

// Some rows of a tensor: count of them from element at on, ld apart.
struct Part {
    uint tensor;
    uint at;
    uint ld;
    uint count;
};

const uint TENSOR_Q = 0;
const uint TENSOR_K = 1;
const uint TENSOR_V = 2;
const uint TENSOR_DO = 3;

// load_part returns vec4 d of a row, zero outside the part.
vec4 load_part(const Part part, const uint row, const uint d) {
    if (row >= part.count || d >= DIM4_OF(part.tensor)) {
        return vec4(0.0);
    }
    const uint i = part.at + row * part.ld + d * 4;
    switch (part.tensor) {
        case TENSOR_Q: return load_q(i);
        case TENSOR_K: return load_k(i);
        case TENSOR_V: return load_v(i);
    }
    return load_do(i);
}

// product sets S, (ROWS, COLS), to owned * walked^T.
void product(out TileNT S, const Part owned, const Part walked) {
    [[unroll]] for (uint i = 0; i < ROWS * COLS; i++) {
        S.at[i] = 0.0;
    }
    [[dont_unroll]] for (uint d0 = 0; d0 < DIM4_OF(owned.tensor); d0 += DEPTH / 4) {
        barrier();  // what was in the tile is read
        for (uint i = gl_LocalInvocationIndex; i < (BLOCK_M + BLOCK_N) * (DEPTH / 4); i += WORKGROUP_SIZE) {
            const uint row = i / (DEPTH / 4);
            const uint d = i % (DEPTH / 4);
            tile[row * PAIR_LD + d] = row < BLOCK_M ? load_part(owned, row, d0 + d) : load_part(walked, row - BLOCK_M, d0 + d);
        }
        barrier();  // tile written before it is read
        product_nt(S, 0, WALKED_AT, PAIR_LD, DEPTH / 4);
    }
}

// put_weights makes weights the left factor of accumulate. They have memory of their own; the
// products that read the weights before must be over.
void put_weights(const TileNT weights) {
    const uint ty = gl_LocalInvocationIndex / THREADS_X;
    const uint tx = gl_LocalInvocationIndex % THREADS_X;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            const uint col = tx + j * THREADS_X;
            tile[WEIGHTS_AT + (ty * ROWS + i) * WEIGHTS_LD + col / 4][col % 4] = weights.at[i * COLS + j];
        }
    }
}

// accumulate adds weights * walked.
void accumulate(inout TileNN acc, const Part walked) {
    [[dont_unroll]] for (uint n0 = 0; n0 < BLOCK_N; n0 += STAGE_ROWS) {
        barrier();  // columns, or the rows before, are read
        for (uint i = gl_LocalInvocationIndex; i < STAGE_SIZE; i += WORKGROUP_SIZE) {
            tile[i] = load_part(walked, n0 + i / STAGE_LD, i % STAGE_LD);
#ifdef FEATURES
            if (WALKED_HIDES && shown[n0 + i / STAGE_LD] == 0) {
                tile[i] = vec4(0.0);
            }
#endif
        }
        barrier();  // rows and weights written before they are read
        product_nn(acc, WEIGHTS_AT + n0 / 4, WEIGHTS_LD, 0, STAGE_LD, STAGE_ROWS / 4);
    }
}

void clear_gradient(out TileNN acc) {
    [[unroll]] for (uint i = 0; i < ROWS * COLS4; i++) {
        acc.at[i] = vec4(0.0);
    }
}
