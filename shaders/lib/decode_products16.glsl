// decode_products16: what lib/decode_matrix.glsl does with keys and values of 16 bits. The macros are
// parts of read_keys, with its variables; lib/decode_products8.glsl has the parts for 8 bits.
//
// Of 8 rows, PAIRED, half of each matrix would be for nothing, and O takes most registers: so O has two
// products of columns in a matrix, one in rows 0 to 7, one in rows 8 to 15. A product then has 8 keys:
//
//     P | 0       V of the first columns         O of the first columns
//     --+--   *   ----------------------    =    ----------------------
//     0 | P       V of the second columns        O of the second columns
//
// An infinite element of V, or a NaN, times these zeros is NaN: attention.DecodeTensors says where.

#include "decode_ahead.glsl"

#define AHEAD inout        // keys and values are in `ahead`, of the first tile and of later ones
#define TILE_KEYS ahead.k
#define TILE_VALUES ahead.v
#define PAGES uvec2

// The scores of a lane: of each of its rows EACH, of keys value_key(0), value_key(1), ... of a tile.
#define EACH 4
#define SCORES ROW_EIGHTS * 4
#define SCORE_MATRICES ROW_TILES * CHAINS

// FIRST_SHARED is what waits for no length, FIRST_LOADED what a subgroup loads before the first tile.
#define FIRST_SHARED share_q(ahead.q);
#define FIRST_LOADED                               \
    uvec2 next_pages = uvec2(part.cache);          \
    if (PAGE_SIZE > 0 && tile + step < end) {      \
        next_pages = pages_of(part, tile + step);  \
    }
#define ROW_SCALES
#define SET_ROW_SCALE(i)

// FOR_HALVES begins the products of each 16 keys of a tile.
#define FOR_HALVES

// SET_KEYS(b, n, e) makes b the operand of product e of load n.
#define SET_KEYS(b, n, e)                             \
    set_right(b, 0, ahead.k.at[n][2 * e]);            \
    set_right(b, 1, ahead.k.at[n][2 * e + 1]);        \
    set_right(b, 2, ahead.k.at[K_LOADS + n][2 * e]);  \
    set_right(b, 3, ahead.k.at[K_LOADS + n][2 * e + 1]);

#define SCORES_OF(r, e) s[r * CHAINS + e % CHAINS]

// SET_SCORE(i) makes x[i] score number i of the lane.
#define SET_SCORE(i)                           \
    const float y = s[i / 8 * CHAINS][i % 8];  \
    x[i] = (CHAINS == 1 ? y : y + s[i / 8 * CHAINS + CHAINS - 1][i % 8]) * p.scale_log2;

// A value that was loaded before the length was known may be anything.
#define HIDE_VALUES                                                                           \
    if (ALONE) {                                                                              \
        [[unroll]] for (uint j = 0; j < 4; j++) {                                             \
            const bool seen = int(tile * TILE + value_key(j)) < part.end;                     \
            [[unroll]] for (uint n = 0; n < V_LOADS; n++) {                                   \
                ahead.v.at[j * V_LOADS + n] = seen ? ahead.v.at[j * V_LOADS + n] : uvec4(0);  \
            }                                                                                 \
        }                                                                                     \
    }

// FIND_ABOVE finds out whether a score is above the maximum; then OWN_MAX(i) makes MAX_OF(i) the lane's
// largest of row i.
#define MAX_OF(i) top
#define FIND_ABOVE                                      \
    [[unroll]] for (uint i = 0; i < SCORES; i++) {      \
        above = above || x[i] > sums.m[i / 4] + SLACK;  \
    }
#define OWN_MAX(i) float top = max(max(x[4 * i], x[4 * i + 1]), max(x[4 * i + 2], x[4 * i + 3]));

// O_MATRIX(r, m) is which matrix has the sums of eight rows, number r, and product number m of columns, of
// V_LOADS * 4, and O_ELEMENT(r, m) the first of the four elements of it that a lane has of them. These are
// multiplied by SUM_ALPHA(e), made of the lane's alpha by SUM_ALPHAS.
#define O_MATRIX(r, m) ((r) / 2 * O_MATRICES + (m) % O_MATRICES)
#define O_ELEMENT(r, m) ((PAIRED ? (m) / O_MATRICES : (r) % 2) * 4)
#define SUM_ALPHAS
#define SUM_ALPHA(e) alpha

// SET_WEIGHTS makes w the weights, of which PRODUCT(r, b, o) adds a product with b to o, and adds them to l.
// FOR_VALUE_HALVES begins the products of each half of the keys, where they are apart.
const uint VALUE_HALVES = PAIRED ? 2 : 1;
#define FOR_VALUE_HALVES [[unroll]] for (uint h = 0; h < VALUE_HALVES; h++)
#define SET_WEIGHTS                                           \
    [[unroll]] for (uint i = 0; i < SCORES; i++) {            \
        x[i] = exp2(x[i] - sums.m[i / 4]);                    \
        sums.l[i / 4] += x[i];                                \
    }                                                         \
    MatA w[ROW_TILES * VALUE_HALVES];                         \
    if (PAIRED) {                                             \
        [[unroll]] for (uint h = 0; h < VALUE_HALVES; h++) {  \
            set_left(w[h], 1, 0);                             \
            set_left(w[h], 2, 0);                             \
            [[unroll]] for (uint i = 0; i < 2; i++) {         \
                w[h][i] = WEIGHT_TO_T(x[2 * h + i]);          \
                w[h][6 + i] = WEIGHT_TO_T(x[2 * h + i]);      \
            }                                                 \
        }                                                     \
    } else {                                                  \
        [[unroll]] for (uint i = 0; i < SCORES; i++) {        \
            w[i / 8][i % 8] = WEIGHT_TO_T(x[i]);              \
        }                                                     \
    }
#define MatV MatB
#define PRODUCT(r, b, o) coopMatMulAdd(w[r * VALUE_HALVES + h], b, o)

// SET_VALUES(b, n, a) makes b the operand of product a of load n, whose scales are VALUE_SCALES(n). PAIRED,
// its first keys are the keys of half h, and its others the same with the columns of a later product.
#define VALUE_SCALES(n)
#define SET_VALUES(b, n, a)                                                  \
    [[unroll]] for (uint i = 0; i < 2; i++) {                                \
        const uint m = n * PRODUCTS + a + (PAIRED ? i * O_MATRICES : 0);     \
        const uint key = 2 * (PAIRED ? h : i);                               \
        const uint first = ahead.v.at[key * V_LOADS + m / 4][m % 4];         \
        const uint second = ahead.v.at[(key + 1) * V_LOADS + m / 4][m % 4];  \
        set_right(b, i, first & 0xffffu | second << 16);                     \
        set_right(b, 2 + i, first >> 16 | second & 0xffff0000u);             \
    }

// A lane has sums of SUM_ROWS rows, SUM_ROW(i) of eight rows SUM_EIGHT(i), and of each load n of V SUM_QUADS
// times four columns from SUM_COLUMN(n, c) on: of products SUM_PRODUCT(n, c) and the next, the elements
// SUM_ELEMENT(i, c) and two after it of the elements of O_ELEMENT.
#define SUM_ROWS ROW_EIGHTS
#define SUM_ROW(i) (i * 8 + lane_g())
#define SUM_EIGHT(i) i
#define SUM_QUADS 4
#define SUM_COLUMN(n, c) ((column_part() * V_LOADS + n) * 64 + lane_t() * 16 + c * 4)
#define SUM_PRODUCT(n, c) (n * 4 + c % 2 * 2)
#define SUM_ELEMENT(i, c) (c / 2)
