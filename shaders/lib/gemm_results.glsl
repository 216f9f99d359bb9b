// gemm_results: the way of a block from sums to C with results in matrices. Results have 16
// bits and depend on the sums alone.
//
// Sums become results in registers, as left matrices, whose elements an invocation holds in the
// places of an accumulator (chips.MatrixLayout). Results go through shared memory: half the
// bytes of sums, 16 bytes to C with one store, and no arithmetic between the loads from there
// and the stores. The compiler would move such arithmetic into the branch of each store's bounds
// check, and then stores wait for one another.
//
// The includer defines OUT_MATRIX_ID, the constant_id of OUT_MATRIX, and includes
// lib/gemm_sums.glsl before, and what lib/gemm_epilogue.glsl needs.

#include "gemm_epilogue.glsl"
#include "two.glsl"

layout(constant_id = OUT_MATRIX_ID) const bool OUT_MATRIX = false;  // where tile has room

const uint RESULT_LINE = TILES_N * (MAT_N / 8);  // uvec4 of a row of a subgroup
const uint RESULT_LD = RESULT_LINE + 1;          // one more, so that rows start in different banks
const uint RESULT_SIZE = STRIP_SIZE * RESULT_LD;
const uint RESULT_STRIPS = 2 * RESULT_SIZE <= TILE_SIZE ? 2 : 1;  // that tile has room for
const bool STRIP_FITS = RESULT_SIZE <= TILE_SIZE;
const bool BY_MATRIX = OUT_MATRIX && STRIP_FITS;

// result_matrix returns C (or with keep X) of a matrix of sums, and adds its numbers to total.
// Unless exact, NaN is not preserved.
MatA result_matrix(const MatC sum, const bool keep, const bool exact, inout vec4 total) {
    MatA m;
    [[unroll]] for (uint i = 0; i < MAT_M * MAT_N / SUBGROUP_SIZE; i += 4) {
        const Values all = values(vec4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]), NO_EXTRAS);
        const vec4 v = keep ? all.x : all.c;
        total += v;
        const uvec2 words = exact ? narrow_words(v, 4).xy : uvec2(round_bf16(v.x, v.y), round_bf16(v.z, v.w));
        const TwoT low = TWO_FROM(words.x);
        const TwoT high = TWO_FROM(words.y);
        m[i] = low.x;
        m[i + 1] = low.y;
        m[i + 2] = high.x;
        m[i + 3] = high.y;
    }
    return m;
}

#include "is_number.glsl"  // here, since the order of functions is part of the bytes that a record names

void put_result(const uint at, const uvec4 words, const uint WIDTH, const bool keep) {
    if (keep) {
        put_x(at, words, WIDTH);
    } else {
        put_c(at, words, WIDTH);
    }
}

// store_results copies a strip of one row of matrices, from uvec4 number at of tile on, to C, or
// with keep to X.
void store_results(const Work w, const uint row, const uint col, const uint at, const bool keep) {
    const uint base = keep ? p.x_offset + w.batch * p.x_stride_b : p.c_offset + w.batch * p.c_stride_b;
    const uint stride = keep ? p.x_stride : p.c_stride;
    const uint end = columns_end(w, p.n);
    const uint lane = gl_SubgroupInvocationID;
    const uint EIGHTS = MAT_M * RESULT_LINE;
    const uint ROUNDS = (EIGHTS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
    uvec4 words[ROUNDS];
    [[unroll]] for (uint round = 0; round < ROUNDS; round++) {
        const uint i = round * SUBGROUP_SIZE + lane;
        const uint y = EIGHTS % SUBGROUP_SIZE == 0 ? i / RESULT_LINE : min(i / RESULT_LINE, MAT_M - 1);
        words[round] = tile[at + y * RESULT_LD + i % RESULT_LINE];
    }
    if (EIGHTS % SUBGROUP_SIZE == 0 && row + MAT_M <= p.m && col + SUBGROUP_N <= end) {
        [[unroll]] for (uint round = 0; round < ROUNDS; round++) {
            const uint i = round * SUBGROUP_SIZE + lane;
            put_result(base + (row + i / RESULT_LINE) * stride + col + i % RESULT_LINE * 8, words[round], 8, keep);
        }
        return;
    }
    [[unroll]] for (uint round = 0; round < ROUNDS; round++) {
        const uint i = round * SUBGROUP_SIZE + lane;
        const uint y = row + i / RESULT_LINE;
        const uint x = col + i % RESULT_LINE * 8;
        const uint place = base + y * stride + x;
        if (y < min(p.m, row + MAT_M) && x + 8 <= end) {
            put_result(place, words[round], 8, keep);
        } else if (y < min(p.m, row + MAT_M)) {
            [[unroll]] for (uint e = 0; e < 8; e++) {
                if (x + e < end) {
                    put_result(place + e, uvec4(words[round][e / 2] >> e % 2 * 16, 0, 0, 0), 1, keep);
                }
            }
        }
    }
}

// STORE_RESULTS(sum, w, row, col) is STORE_SUMS with BY_MATRIX. Rounding is faster if it ignores
// NaNs. If the total shows a NaN or an infinity, the subgroup stores its results a second time.
#define STORE_RESULTS(sum, w, row, col)                                                                 \
    barrier();                                                                                          \
    vec4 total = vec4(0.0);                                                                             \
    STORE_ROUNDED(sum, w, row, col, OUT_FORMAT != FORMAT_BF16)                                          \
    if (OUT_FORMAT == FORMAT_BF16 && subgroupAny(!is_number(total.x + total.y + total.z + total.w))) {  \
        STORE_ROUNDED(sum, w, row, col, true)                                                           \
    }

// STORE_ROUNDED stores them once. A strip must be read before tile is written in its place. With
// room for two strips, the barrier between writes and reads of the other strip ensures that.
#define STORE_ROUNDED(sum, w, row, col, exact)                                                    \
    strip_barrier();                                                                              \
    [[unroll]] for (uint strip = 0; strip < TILES_M * (KEEP_X ? 2 : 1); strip++) {                \
        const bool keep = KEEP_X && strip % 2 == 0;                                               \
        const uint i = strip / (KEEP_X ? 2 : 1);                                                  \
        const uint at = strip % RESULT_STRIPS * RESULT_SIZE + gl_SubgroupID * MAT_M * RESULT_LD;  \
        if (RESULT_STRIPS == 1) {                                                                 \
            strip_barrier();                                                                      \
        }                                                                                         \
        [[unroll]] for (uint j = 0; j < TILES_N; j++) {                                           \
            coopMatStore(result_matrix(sum[i * TILES_N + j], keep, exact, total), tile,           \
                         at + j * (MAT_N / 8), RESULT_LD, ROW_MAJOR);                             \
        }                                                                                         \
        strip_barrier();                                                                          \
        store_results(w, row + i * MAT_M, col, at, keep);                                         \
    }
