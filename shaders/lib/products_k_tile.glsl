// products_k_tile: the way of a k-tile of W and Y from memory to products, for
// attention_bwd_products.comp, which has the names of constants and variables.

const uint STEPS = BLOCK_K / MAT_N;    // matrices along rows of a k-tile
const uint Y_LINE8 = BLOCK_D / 8;   // columns past head_dim are zero
const uint Y_LD = Y_LINE8 + 1;      // one more, so that lines start in different banks
const uint Y_SIZE = BLOCK_K * Y_LINE8;
const uint Y_COPIES = (Y_SIZE + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint W_SIZE = BLOCK_K * PAGE_LD;  // uvec4 of a k-tile in a page
const uint W_COPIES = (W_SIZE + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
#ifdef PACKED
const uint W_LD = PAGE_LD;  // w_place has packed matrices in other banks
#else
const uint W_LD = PAGE_LD + 1;
#endif
const uint Y_AT = BLOCK_K * W_LD;  // where Y begins
const uint K_TILES_SIZE = Y_AT + BLOCK_K * Y_LD;
// Subgroups store their sums, one column or row of matrices at a time, as float32.
const uint SUMS_LD = SUBGROUP_DIMS / 4 + 1;
const uint SUMS_SIZE = SUBGROUPS_K * SUBGROUPS_D * KEY_SIDE * SUMS_LD;

shared uvec4 tile[K_TILES_SIZE > SUMS_SIZE ? K_TILES_SIZE : SUMS_SIZE];

// y_line returns which line of the k-tile has row `row` of it.
uint y_line(const uint row) {
#ifdef PACKED
    return row / 16 * 16 + row_in_matrix(row % 16);
#else
    return row;
#endif
}

// w_place returns the index in tile of uvec4 number i of W of a k-tile. With PACKED neither these stores
// nor the loads of right matrices (packed_place) have bank conflicts.
uint w_place(const uint i) {
#ifdef PACKED
    const uint odd = i / 32 % 2;  // the key's last bit
    const uint row = i / 4 % 8;
    const uint key = i % 4;
    return i / 64 * 64 + row / 4 * 32 + key * 8 + (row % 4 + 4 * odd + 2 * key) % 8;
#else
    return i / PAGE_LD * W_LD + i % PAGE_LD;
#endif
}

#ifdef PACKED
// packed_place returns where in 64 uvec4 an invocation finds what it holds of the rows of two matrices
// that are 0 to 3 and 8 to 11, and 32 later the others.
uint packed_place() {
    const uint key = gl_SubgroupInvocationID / 4;
    const uint row = gl_SubgroupInvocationID % 4;
    return key / 2 * 8 + (row + 4 * (key % 2) + 2 * (key / 2)) % 8;
}
#endif

// Macros, because arrays sized by specialization constants cannot be arguments. LOAD_K_TILE declares the
// registers of a k-tile and loads it: W from uvec4 w_at on, Y from row `row` of the head at y_at. STORE_K_TILE
// puts it into tile. PRODUCTS adds the products of the k-tile in tile to sum.
#define LOAD_K_TILE                                                                                                        \
    uvec4 y_next[Y_COPIES];                                                                                                \
    [[unroll]] for (uint i = 0; i < Y_COPIES; i++) {                                                                       \
        const uint col = col_of_copy(i, Y_LINE8) * 8;                                                                      \
        y_next[i] = BLOCK_D == HEAD_DIM || col < HEAD_DIM                                                                  \
                        ? load_y(y_at + min(row + row_of_copy(i, Y_LINE8), p.seq_q - 1) * p.y_stride_s + col) : uvec4(0);  \
    }                                                                                                                      \
    uvec4 w_next[W_COPIES];                                                                                                \
    [[unroll]] for (uint i = 0; i < W_COPIES; i++) {                                                                       \
        w_next[i] = stored8[w_at + (is_copy(i, W_SIZE) ? i * WORKGROUP_SIZE + gl_LocalInvocationIndex : 0)];               \
    }
#define STORE_K_TILE                                                                                    \
    [[unroll]] for (uint i = 0; i < Y_COPIES; i++) {                                                    \
        if (is_copy(i, Y_SIZE)) {                                                                       \
            tile[Y_AT + y_line(row_of_copy(i, Y_LINE8)) * Y_LD + col_of_copy(i, Y_LINE8)] = y_next[i];  \
        }                                                                                               \
    }                                                                                                   \
    [[unroll]] for (uint i = 0; i < W_COPIES; i++) {                                                    \
        if (is_copy(i, W_SIZE)) {                                                                       \
            tile[w_place(i * WORKGROUP_SIZE + gl_LocalInvocationIndex)] = w_next[i];                    \
        }                                                                                               \
    }
#ifdef PACKED
#define PRODUCTS                                                                                                    \
    [[unroll]] for (uint d = 0; d < STEPS; d++) {                                                                   \
        fence(d);                                                                                                   \
        MatA a[TILES_D];                                                                                            \
        [[unroll]] for (uint i = 0; i < TILES_D; i++) {                                                             \
            coopMatLoad(a[i], tile, Y_AT + d * MAT_N * Y_LD + (subgroup_dim + i * MAT_M) / 8, Y_LD, COLUMN_MAJOR);  \
        }                                                                                                           \
        [[unroll]] for (uint j = 0; j < TILES_K; j += 2) {                                                          \
            const uvec4 x = tile[packed_at + (d * (BLOCK_M / 32) + j / 2) * 64];                                    \
            const uvec4 y = tile[packed_at + (d * (BLOCK_M / 32) + j / 2) * 64 + 32];                               \
            const MatB low = right_matrix(uvec4(x.x, y.x, x.y, y.y));                                               \
            const MatB high = right_matrix(uvec4(x.z, y.z, x.w, y.w));                                              \
            [[unroll]] for (uint i = 0; i < TILES_D; i++) {                                                         \
                sum[j * TILES_D + i] = coopMatMulAdd(a[i], low, sum[j * TILES_D + i]);                              \
                sum[(j + 1) * TILES_D + i] = coopMatMulAdd(a[i], high, sum[(j + 1) * TILES_D + i]);                 \
            }                                                                                                       \
        }                                                                                                           \
    }
#define SUM_LAYOUT COLUMN_MAJOR
#else
#define PRODUCTS                                                                                              \
    [[unroll]] for (uint d = 0; d < STEPS; d++) {                                                             \
        fence(d);                                                                                             \
        MatA a[TILES_K];                                                                                      \
        [[unroll]] for (uint i = 0; i < TILES_K; i++) {                                                       \
            coopMatLoad(a[i], tile, d * MAT_N * W_LD + (subgroup_key + i * MAT_M) / 8, W_LD, COLUMN_MAJOR);   \
        }                                                                                                     \
        [[unroll]] for (uint j = 0; j < TILES_D; j++) {                                                       \
            MatB b;                                                                                           \
            coopMatLoad(b, tile, Y_AT + d * MAT_N * Y_LD + (subgroup_dim + j * MAT_N) / 8, Y_LD, ROW_MAJOR);  \
            [[unroll]] for (uint i = 0; i < TILES_K; i++) {                                                   \
                sum[i * TILES_D + j] = coopMatMulAdd(a[i], b, sum[i * TILES_D + j]);                          \
            }                                                                                                 \
        }                                                                                                     \
    }
#define SUM_LAYOUT ROW_MAJOR
#endif
