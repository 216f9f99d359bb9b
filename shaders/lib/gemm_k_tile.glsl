// gemm_k_tile: the way of a k-tile of op(A) and op(B) from memory to products, for
// lib/gemm_matrix.glsl, which has the names of constants and variables.
//
// With PACKED, op(B) is right matrices of gemm_pack.comp, a panel of k-tiles for each
// subgroup of a row of subgroups. They come from memory straight into registers, with AHEAD of
// them in flight, and only op(A) passes through shared memory.

const uint K_STEPS = DEPTH / MAT_N;  // matrices along k of a k-tile
#ifdef PACKED
#include "packed.glsl"

const uint K_TILE_RIGHTS = K_STEPS * TILES_N;  // right matrices that a subgroup needs of a k-tile
const bool FEW_SUMS = TILES_M * TILES_N < 16;
const uint AHEAD = FEW_SUMS ? 8 : 4;              // divides K_TILE_RIGHTS
const uint TILES_N_2 = TILES_N & (0u - TILES_N);  // the largest power of two that divides TILES_N
const uint CHUNK_STEPS = TILES_N_2 < AHEAD ? AHEAD / TILES_N_2 : 1;  // matrices along k whose right ones are a multiple of AHEAD
const bool EVEN_LINES = WORKGROUP_SIZE % (8 * A_LINE8) == 0;
const bool A_STEPS = FEW_SUMS && EVEN_LINES && A_BY_K && A_ALIGNED;  // copies are equal distances apart; see LOAD_LEFT
#else
const uint CHUNK_STEPS = 1;
#endif

// NEXT_K_TILE declares the registers in which a k-tile waits.
#ifdef PACKED
#define NEXT_K_TILE uvec4 a_next[A_COPIES * A_WORDS];
#else
#define NEXT_K_TILE                    \
    uvec4 a_next[A_COPIES * A_WORDS];  \
    uvec4 b_next[B_COPIES * B_WORDS];
#endif

// LOAD_K_TILE(k) loads the whole k-tile at k from memory into a_next and b_next, STORE_K_TILE
// puts them into tile, and PRODUCTS adds the products of the k-tile in tile to sum; with F32X2
// of hi and lo, which a_lo and b_lo are; PRODUCTS_OF(FIRST, COUNT) the products of COUNT rows of
// matrices of op(B) from the first on. RIGHT(b, FIRST, d, j) declares right matrix number j of
// row FIRST + d. Macros, as arrays sized by specialization constants cannot be arguments.
#define LOAD_K_TILE(k)                                          \
    [[unroll]] for (uint i = 0; i < A_COPIES * A_WORDS; i++) {  \
        LOAD_LEFT(i, step_to(true, A, k))                       \
    }                                                           \
    LOAD_RIGHT(k)
#define STORE_K_TILE                                                                        \
    [[unroll]] for (uint i = 0; i < A_COPIES; i++) {                                        \
        if (is_copy(i, A_LINES * A_LINE8)) {                                                \
            tile[line_of(i, A_LINE8) * A_LD + col_of_copy(i, A_LINE8)] =                    \
                piece(true, A, i, a_next[i * A_WORDS], a_next[i * A_WORDS + A_WORDS - 1]);  \
        }                                                                                   \
    }                                                                                       \
    STORE_RIGHT
// LOAD_LEFT(i, step) loads copy number i of op(A), a step from the k-tile at 0. Registers are few
// with a packed op(B), so the place is computed there, with the step inside the expression: otherwise
// the compiler would hoist a part of it out of the loop and keep it for each copy. That gains 1 to
// 2 % with 3 x 4 sums, and loses 11 % with 4 x 4, where it spills more (H200).
#ifdef PACKED
#define LOAD_LEFT(i, step)                                         \
    const uint k_step = step;                                      \
    uint at = a_at[i] + k_step;                                    \
    if (A_STEPS) {                                                 \
        at = min(a_first + i * a_step + k_step, a_last + k_step);  \
    }                                                              \
    a_next[i] = fetch(true, at);
#define LOAD_RIGHT(k)
#define STORE_RIGHT
#define RIGHT(b, FIRST, d, j)                                       \
    const MatB b = right_matrix(ahead[(d * TILES_N + j) % AHEAD]);  \
    ahead[(d * TILES_N + j) % AHEAD] = b8[right_at + (d * TILES_N + j + AHEAD) * SUBGROUP_SIZE];
#define END_STEPS(COUNT) right_at += COUNT * TILES_N * SUBGROUP_SIZE;
#else
#define LOAD_LEFT(i, step) a_next[i] = fetch(true, a_at[i] + step);
#define LOAD_RIGHT(k)                                              \
    [[unroll]] for (uint i = 0; i < B_COPIES * B_WORDS; i++) {     \
        b_next[i] = fetch(false, b_at[i] + step_to(false, B, k));  \
    }
#define STORE_RIGHT                                                                          \
    [[unroll]] for (uint i = 0; i < B_COPIES; i++) {                                         \
        if (is_copy(i, B_LINES * B_LINE8)) {                                                 \
            tile[B_AT + line_of(i, B_LINE8) * B_LD + col_of_copy(i, B_LINE8)] =              \
                piece(false, B, i, b_next[i * B_WORDS], b_next[i * B_WORDS + B_WORDS - 1]);  \
        }                                                                                    \
    }
#define RIGHT(b, FIRST, d, j)                                                                     \
    MatB b;                                                                                       \
    if (B_BY_K) {                                                                                 \
        coopMatLoad(b, tile, B_AT + col * B_LD + (FIRST + d) * (MAT_N / 8), B_LD, COLUMN_MAJOR);  \
    } else {                                                                                      \
        coopMatLoad(b, tile, B_AT + (FIRST + d) * MAT_N * B_LD + col / 8, B_LD, ROW_MAJOR);       \
    }
#define END_STEPS(COUNT)
#endif
#define PRODUCTS_OF(FIRST, COUNT)                                                                                     \
    [[unroll]] for (uint d = 0; d < COUNT; d++) {                                                                     \
        fence(d);                                                                                                     \
        MatA a[TILES_M];                                                                                              \
        MatA a_lo[TILES_M];                                                                                           \
        [[unroll]] for (uint i = 0; i < TILES_M; i++) {                                                               \
            const uint row = subgroup_row + i * MAT_M;                                                                \
            if (A_BY_K) {                                                                                             \
                coopMatLoad(a[i], tile, row * A_LD + (FIRST + d) * (MAT_N / 8), A_LD, ROW_MAJOR);                     \
            } else {                                                                                                  \
                coopMatLoad(a[i], tile, (FIRST + d) * MAT_N * A_LD + row / 8, A_LD, COLUMN_MAJOR);                    \
            }                                                                                                         \
            if (F32X2) {                                                                                              \
                coopMatLoad(a_lo[i], tile, row * A_LD + (DEPTH + (FIRST + d) * MAT_N) / 8, A_LD, ROW_MAJOR);          \
            }                                                                                                         \
        }                                                                                                             \
        [[unroll]] for (uint j = 0; j < TILES_N; j++) {                                                               \
            const uint col = subgroup_col + j * MAT_N;                                                                \
            RIGHT(b, FIRST, d, j)                                                                                     \
            MatB b_lo;                                                                                                \
            if (F32X2) {                                                                                              \
                coopMatLoad(b_lo, tile, B_AT + col * B_LD + (DEPTH + (FIRST + d) * MAT_N) / 8, B_LD, COLUMN_MAJOR);   \
            }                                                                                                         \
            [[unroll]] for (uint i = 0; i < TILES_M; i++) {                                                           \
                if (F32X2) {                                                                                          \
                    const MatC large = coopMatMulAdd(a[i], b, MatC(0.0));                                             \
                    const MatC small = coopMatMulAdd(a[i], b_lo, coopMatMulAdd(a_lo[i], b, MatC(0.0)));               \
                    [[unroll]] for (uint e = 0; e < MAT_M * MAT_N / SUBGROUP_SIZE; e++) {                             \
                        sum[i * TILES_N + j][e] = fma(small[e], 1.0 / LO_SCALE, sum[i * TILES_N + j][e] + large[e]);  \
                    }                                                                                                 \
                } else {                                                                                              \
                    sum[i * TILES_N + j] = coopMatMulAdd(a[i], b, sum[i * TILES_N + j]);                              \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
    }                                                                                                                 \
    END_STEPS(COUNT)
#define PRODUCTS PRODUCTS_OF(0, K_STEPS)
