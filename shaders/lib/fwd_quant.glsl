// fwd_quant: what lib/fwd_matrix.glsl needs to know of Q and K that are integers of 8 bits, as
// attention_quantize.comp writes them for matrices (QUANT). Their products are sums of 32 bits, exact
// below 2^22.
//
//     S[i, j] = q_scale[i] * k_scale[j] * (sum over head_dim)
//
// A tile has keys of one scale: BLOCK_N divides 64, which share it. It begins at a multiple of BLOCK_N,
// with a window too (lib/features.glsl).
//
// Offsets and strides of q and k are in bytes. Shared memory holds BLOCK_N rows of K, of K_ROW uvec4,
// where a matrix takes K_CELL, and from V_AT on the same keys of V. Q goes straight to its matrices.

#include "tile_shape.glsl"

#define MatQ coopmat<int8_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA>
#define MatK coopmat<int8_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB>
#define MatS coopmat<int32_t, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>

// A sum that begins with the bits of FLOAT_ONES is, read as a float, FLOAT_ONES more, without a conversion,
// where accumulators of both types have the layout that is known.
const float FLOAT_ONES = 12582912.0;  // 1.5 * 2^23: its last bit is 1
const bool AS_FLOAT = ROW_LANES > 0;
#define NO_SUM (AS_FLOAT ? floatBitsToInt(FLOAT_ONES) : 0)

const float LEAST_FOLD = 1.1754944e-38;  // a hidden key has S = -inf, and 0 * -inf is NaN
#define FOLD(i) max(q_scale[i] * k_scales[k_base / ROW_BYTES + col0] * PLAIN.scale_log2, LEAST_FOLD)

#define KEY_STEP 64  // where blocks begin, with a window too: the keys that share a scale

const uint K_CELL = (MAT_K + 15) / 16;
const uint K_TILES = (HEAD_DIM + MAT_K - 1) / MAT_K;
const uint K_ROW = K_TILES * K_CELL;
const uint ROW_BYTES = K_ROW * 16;
const uint K_LD = K_ROW + 1;  // as LD
const uint K_TILE = BLOCK_N * K_ROW;
const uint K_COPIES = (K_TILE + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;  // at most COPIES
const uint V_AT = BLOCK_N * K_LD;
const uint TILE_SIZE = V_AT + BLOCK_N * LD;
shared uvec4 tile[TILE_SIZE];

MatC scores_of(const MatS sum) {
    if (!AS_FLOAT) {
        return MatC(sum);
    }
    MatC y;
    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
        y[i] = intBitsToFloat(sum[i]) - FLOAT_ONES;
    }
    return y;
}

// q_row returns what belongs to a row of the head at q_at; of rows past the last memory may hold NaN.
vec2 q_row(const uint q_at, const uint row) { return row < p.seq_q ? q_rows[q_at / ROW_BYTES + row] : vec2(0.0); }

float m_shift(const uint q_at, const uint row) { return q_row(q_at, row).y; }

uvec4 fetch_k(const uint base, const uint i, const uint last) {
    const uint row = min(row_of_copy(i, K_ROW), last);
    return i < K_COPIES ? k16[(base + row * p.k_stride_s) / 16 + col_of_copy(i, K_ROW)] : uvec4(0);
}

void put_kv(const uint i, const uvec4 k, const uvec4 v, const uvec2 exponents) {
    if (i < K_COPIES && is_copy(i, K_TILE)) {
        tile[row_of_copy(i, K_ROW) * K_LD + col_of_copy(i, K_ROW)] = k;
    }
    if (copies(i)) {
        tile[V_AT + copy_row(i) * LD + copy_col(i)] = v;
    }
}

#include "tile.glsl"
