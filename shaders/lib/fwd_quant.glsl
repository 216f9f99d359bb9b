// fwd_quant: lib/fwd_matrix.glsl where Q and K are integers of 8 bits (QUANT): their products are sums
// of 32 bits, exact below 2^22.
//
//     S[i, j] = q_scale[i] * k_scale[j] * (sum over head_dim)
//
// A tile has keys of one scale: BLOCK_N divides 64, which share it. It begins at a multiple of BLOCK_N,
// with a window too (lib/features.glsl).

#define MatA8 coopmat<int8_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA>
#define MatB8 coopmat<int8_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB>
#define MatC32 coopmat<int32_t, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>

// A sum that begins with the bits of FLOAT_ONES is, read as a float, FLOAT_ONES more, without a conversion,
// where accumulators of both types have the layout that is known.
const float FLOAT_ONES = 12582912.0;  // 1.5 * 2^23: its last bit is 1
const bool AS_FLOAT = ROW_LANES > 0;
const float LEAST_FOLD = 1.1754944e-38;  // a hidden key has S = -inf, and 0 * -inf is NaN

MatC scores_of(const MatC32 x) {
    if (!AS_FLOAT) {
        return MatC(x);
    }
    MatC y;
    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
        y[i] = intBitsToFloat(x[i]) - FLOAT_ONES;
    }
    return y;
}

// SUM_COLUMN defines `MatC32 sum[ROW_TILES]`, the products of the rows and of column n of the matrices of
// keys. FOLD_TILE defines `float fold[]`, what makes S of a tile base-2 logits.
#define SUM_COLUMN(n)                                                               \
    MatC32 sum[ROW_TILES];                                                          \
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {                               \
        sum[r] = MatC32(AS_FLOAT ? floatBitsToInt(FLOAT_ONES) : 0);                 \
    }                                                                               \
    [[unroll]] for (uint d = 0; d < K_TILES; d++) {                                 \
        fence(d);                                                                   \
        MatB8 kt;                                                                   \
        coopMatLoad(kt, tile, (n) * MAT_N * K_LD + d * K_CELL, K_LD, COLUMN_MAJOR); \
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {                           \
            sum[r] = coopMatMulAdd(Q_[r * K_TILES + d], kt, sum[r]);                \
        }                                                                           \
    }
#define FOLD_TILE(col0)                                                                     \
    float fold[ROW_TILES * ROWS];                                                           \
    {                                                                                       \
        const float k_scale = k_scales[k_row0 + (col0)];                                    \
        [[unroll]] for (uint i = 0; i < ROW_TILES * ROWS; i++) {                            \
            fold[i] = max(q_scale[i] * k_scale * PLAIN.scale_log2, LEAST_FOLD);             \
        }                                                                                   \
    }

#define PLACE place
#define TILE_SCALE 1.0
#define ROW_SCALE(r, i) fold[(r) * ROWS + (i)]
#define BASE_OF(row_max) row_max
#define PLAIN_M(m) m + q_rows[q_row0 + row - subgroup_row].y  // of the part of forward() that stores a row
#define PLAIN_L(l) l
#define OUT_SCALE(l) inverse_sum(l)
#define VALUES_AT(n) V_AT + (n) * MAT_N * LD
