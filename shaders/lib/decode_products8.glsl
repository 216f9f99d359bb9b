// decode_products8: what lib/decode_matrix.glsl does with keys and values of 8 bits, on matrices of
// float16; the names are as in lib/decode_products16.glsl. Tiles may have twice as many keys, as
// these have half the bytes.
//
// O is transposed, 16 columns by 8 rows: the few rows that share a key are columns of matrices that may be
// 8 wide, and take half the registers of matrices 16 wide. Weights are where the products need them: a lane's
// element i is of row g and key value_key(i).

#include "decode_no_ahead.glsl"
#include "decode_operands.glsl"

#define AHEAD const
#define TILE_KEYS k
#define TILE_VALUES v
#define PAGES uvec4

const uint EACH = HALVES * 4;
#define SCORES ROW_EIGHTS * EACH
#define SCORE_MATRICES ROW_TILES * HALVES

#define FIRST_SHARED
#define FIRST_LOADED                                   \
    Keys k;                                            \
    Values v;                                          \
    uvec4 next_pages = uvec4(part.cache);              \
    if (tile < end) {                                  \
        const uvec4 pages = pages_of(part, tile);      \
        load_keys(part, tile, pages, k);               \
        load_values(part, tile, pages, v);             \
        if (PAGE_SIZE > 0 && tile + step < end) {      \
            next_pages = pages_of(part, tile + step);  \
        }                                              \
    }                                                  \
    share_q(part);
#define ROW_SCALES float scale[ROW_EIGHTS];
#define SET_ROW_SCALE(i) scale[i] = row_scale(i * 8 + lane_g()) * SCORE_SCALE(part);

#define FOR_HALVES [[unroll]] for (uint h = 0; h < HALVES; h++)

#define SET_KEYS(b, n, e)                                            \
    [[unroll]] for (uint i = 0; i < 2; i++) {                        \
        const uint word = k.at[(2 * h + i) * K_LOADS + n][e];        \
        const uvec2 x = operands(word, key_scale(k, 2 * h + i, n));  \
        set_right(b, 2 * i, x.x);                                    \
        set_right(b, 2 * i + 1, x.y);                                \
    }

#define SCORES_OF(r, e) s[HALVES * r + h]

// MATRIX_OF(i) is which matrix of scores has score i of a lane, and ELEMENT_OF(i) which of the lane's
// elements of it that is.
#define MATRIX_OF(i) (i / (2 * EACH) * HALVES + i % EACH / 4)
#define ELEMENT_OF(i) (i / EACH % 2 * 4 + i % 4)

#define SET_SCORE(i) x[i] = s[MATRIX_OF(i)][ELEMENT_OF(i)] * scale[i / EACH];

#define HIDE_VALUES

#define MAX_OF(i) top[i]
#define FIND_ABOVE                                      \
    float top[ROW_EIGHTS];                              \
    [[unroll]] for (uint i = 0; i < ROW_EIGHTS; i++) {  \
        top[i] = x[EACH * i];                           \
        [[unroll]] for (uint j = 1; j < EACH; j++) {    \
            top[i] = max(top[i], x[EACH * i + j]);      \
        }                                               \
        above = above || top[i] > sums.m[i] + SLACK;    \
    }
#define OWN_MAX(i)

#define O_MATRIX(r, m) ((r) * O_MATRICES + (m))
#define O_ELEMENT(r, m) 0
#define SUM_ALPHAS const vec2 alphas = vec2(subgroupShuffle(alpha, lane_t() * 8), subgroupShuffle(alpha, lane_t() * 8 + 4));  // of rows 2t and 2t+1
#define SUM_ALPHA(e) alphas[e % 2]

#define FOR_VALUE_HALVES FOR_HALVES
#define SET_WEIGHTS                                                    \
    MatW w[ROW_EIGHTS * HALVES];                                       \
    [[unroll]] for (uint i = 0; i < SCORES; i += 2) {                  \
        const vec2 y = exp2(vec2(x[i], x[i + 1]) - sums.m[i / EACH]);  \
        sums.l[i / EACH] += y.x + y.y;                                 \
        set_weights(w[i / 4], i % 4 / 2, packFloat2x16(f16vec2(y)));   \
    }
#define MatV MatA
#define PRODUCT(r, b, o) coopMatMulAdd(b, w[r * HALVES + h], o)

#define VALUE_SCALES(n)                             \
    uint scales[EIGHTS];                            \
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {  \
        scales[i] = value_scales(v, 2 * i, n);      \
    }
#define SET_VALUES(b, n, a)                                                  \
    [[unroll]] for (uint i = 0; i < 2; i++) {                                \
        const uint first = v.at[(4 * h + 2 * i) * V_LOADS + n][a / 2];       \
        const uint second = v.at[(4 * h + 2 * i + 1) * V_LOADS + n][a / 2];  \
        const uint two = low_or_high(first, second, a % 2 == 1);             \
        const uvec2 x = operands(two, scales[2 * h + i]);                    \
        set_left(b, i, x.x);                                                 \
        set_left(b, 2 + i, x.y);                                             \
    }

#define SUM_ROWS (2 * ROW_EIGHTS)
#define SUM_ROW(i) (i / 2 * 8 + lane_t() * 2 + i % 2)
#define SUM_EIGHT(i) (i / 2)
#define SUM_QUADS 2
#define SUM_COLUMN(n, c) (value_column(n) + c * 4)
#define SUM_PRODUCT(n, c) (n * 4 + c * 2)
#define SUM_ELEMENT(i, c) (i % 2)
