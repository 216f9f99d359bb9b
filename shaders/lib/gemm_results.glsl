// gemm_results: the way of a block from sums to C where results are made in matrices: of 16
// bits, from sums alone.
//
// Sums become results where they are, in registers, as left matrices, whose elements an
// invocation has in the places of an accumulator (chips.MatrixLayout). These go through shared
// memory: half the bytes of sums, 16 of them to C with one store, and no arithmetic between
// loads from there and stores. The compiler moves what it finds there into the branch of each
// store's bounds check, and then stores wait for one another.
//
// The includer defines OUT_MATRIX_ID, the constant_id of OUT_MATRIX, and includes
// lib/gemm_sums.glsl before, and after this file what lib/gemm_epilogue.glsl needs and
// lib/gemm_strip.glsl.
#ifndef LIB_GEMM_RESULTS_GLSL
#define LIB_GEMM_RESULTS_GLSL

#include "two.glsl"

layout(constant_id = OUT_MATRIX_ID) const bool OUT_MATRIX = false;  // where tile has room

const uint RESULT_LINE = TILES_N * (MAT_N / 8);  // uvec4 of a row of a subgroup
const uint RESULT_LD = RESULT_LINE + 1;          // one more, so that rows start in different banks
const uint RESULT_SIZE = STRIP_SIZE * RESULT_LD;
const uint RESULT_STRIPS = TILE_SIZE / RESULT_SIZE < 2 ? TILE_SIZE / RESULT_SIZE : 2;  // that tile has room for
const bool STRIPS_FIT = RESULT_STRIPS > 0;
const bool BY_MATRIX = OUT_MATRIX && STRIPS_FIT;

// result_matrix returns C of a matrix of sums, or with keep X, and adds its numbers to total;
// unless exact, no result may be a NaN.
MatA result_matrix(const MatC sum, const bool keep, const bool exact, inout vec4 total);

// store_results takes a strip of one row of matrices from uvec4 number at of tile on to C, or
// with keep to X.
void store_results(const Work w, const uint row, const uint col, const uint at, const bool keep);

// is_number returns false for infinities and NaNs.
bool is_number(const float x);

// STORE_RESULTS(sum, w, row, col) is what STORE_SUMS is, with BY_MATRIX. Numbers are rounded
// faster than what may be a NaN: if there is one, which their total shows, the subgroup stores
// its results a second time.
#define STORE_RESULTS(sum, w, row, col)                                                                \
    barrier();                                                                                         \
    vec4 total = vec4(0.0);                                                                            \
    STORE_ROUNDED(sum, w, row, col, OUT_FORMAT != FORMAT_BF16)                                         \
    if (OUT_FORMAT == FORMAT_BF16 && subgroupAny(!is_number(total.x + total.y + total.z + total.w))) { \
        STORE_ROUNDED(sum, w, row, col, true)                                                          \
    }

// With one strip in tile there is a barrier before it is written again; with two the one between
// them is enough.
#define STORE_ROUNDED(sum, w, row, col, exact)                                                              \
    strip_barrier();                                                                                        \
    [[unroll]] for (uint strip = 0; strip < TILES_M * (KEEP_X ? 2 : 1); strip++) {                          \
        const bool keep = KEEP_X && strip % 2 == 0;                                                         \
        const uint i = strip / (KEEP_X ? 2 : 1);                                                            \
        const uint at = strip % RESULT_STRIPS * RESULT_SIZE + gl_SubgroupID * MAT_M * RESULT_LD;            \
        if (RESULT_STRIPS == 1) {                                                                           \
            strip_barrier();                                                                                \
        }                                                                                                   \
        [[unroll]] for (uint j = 0; j < TILES_N; j++) {                                                     \
            coopMatStore(result_matrix(sum[i * TILES_N + j], keep, exact, total), tile,                     \
                         at + j * (MAT_N / 8), RESULT_LD, gl_CooperativeMatrixLayoutRowMajor);              \
        }                                                                                                   \
        strip_barrier();                                                                                    \
        store_results(w, row + i * MAT_M, col, at, keep);                                                   \
    }

#endif
