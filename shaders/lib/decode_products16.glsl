// decode_products16: what lib/decode_matrix.glsl does with keys and values of 16 bits. The macros are
// parts of read_keys, with its variables; lib/decode_products8.glsl has those of 8 bits.
#ifndef LIB_DECODE_PRODUCTS16_GLSL
#define LIB_DECODE_PRODUCTS16_GLSL

#include "decode_ahead.glsl"

#define AHEAD inout        // the first keys and values are in `ahead`, and those of later tiles too
#define TILE_KEYS ahead.k
#define TILE_VALUES ahead.v
#define PAGES uvec2

// The scores of a lane: of each of its rows EACH, of keys value_key(0), value_key(1), ... of a tile.
#define EACH 4
#define SCORES ROW_TILES * 8
#define SCORE_MATRICES ROW_TILES * CHAINS
#define WEIGHT_MATRICES ROW_TILES

// FIRST_SHARED is what waits for no length, FIRST_LOADED what a subgroup loads before the first tile.
#define FIRST_SHARED share_q(ahead.q);
#define FIRST_LOADED                                  \
    uvec2 next_pages = uvec2(part.cache);             \
    if (PAGE_SIZE > 0 && tile + step < end) {         \
        next_pages = pages_of(part, tile + step);     \
    }
#define ROW_SCALES
#define SET_ROW_SCALE(i)

// FOR_HALVES begins the products of each 16 keys of a tile.
#define FOR_HALVES

// SET_KEYS(b, n, e) makes b the operand of product e of load n.
#define SET_KEYS(b, n, e)                                \
    set_right(b, 0, ahead.k.at[n][2 * e]);               \
    set_right(b, 1, ahead.k.at[n][2 * e + 1]);           \
    set_right(b, 2, ahead.k.at[K_LOADS + n][2 * e]);     \
    set_right(b, 3, ahead.k.at[K_LOADS + n][2 * e + 1]);

#define SCORES_OF(r, e) s[r * CHAINS + e % CHAINS]

// SET_SCORE(i) makes x[i] score number i of the lane.
#define SET_SCORE(i)                                                                           \
    const float y = s[i / 8 * CHAINS][i % 8];                                                  \
    x[i] = (CHAINS == 1 ? y : y + s[i / 8 * CHAINS + CHAINS - 1][i % 8]) * p.scale_log2;

// A value that was loaded before the length was known may be anything.
#define HIDE_VALUES                                                                                \
    if (ALONE) {                                                                                   \
        [[unroll]] for (uint j = 0; j < 4; j++) {                                                  \
            const bool seen = int(tile * TILE + value_key(j)) < part.end;                          \
            [[unroll]] for (uint n = 0; n < V_LOADS; n++) {                                        \
                ahead.v.at[j * V_LOADS + n] = seen ? ahead.v.at[j * V_LOADS + n] : uvec4(0);       \
            }                                                                                      \
        }                                                                                          \
    }

// FIND_ABOVE finds out whether a score is above the maximum; then OWN_TOP(i) makes TOP(i) the lane's
// largest of row i.
#define TOP(i) top
#define FIND_ABOVE                                                \
    [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {         \
        above = above || x[i] > sums.m[i / 4] + SLACK;            \
    }
#define OWN_TOP(i) float top = max(max(x[4 * i], x[4 * i + 1]), max(x[4 * i + 2], x[4 * i + 3]));

// SET_WEIGHTS makes w the weights, and adds them to l.
#define SET_WEIGHTS                                               \
    [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {         \
        const float y = exp2(x[i] - sums.m[i / 4]);               \
        sums.l[i / 4] += y;                                       \
        w[i / 8][i % 8] = WEIGHT_TO_T(y);                         \
    }
#define WEIGHTS_OF(r) w[r]

// SET_VALUES(b, n, a) makes b the operand of product a of load n, whose scales are VALUE_SCALES(n).
#define VALUE_SCALES(n)
#define SET_VALUES(b, n, a)                                                      \
    [[unroll]] for (uint i = 0; i < 2; i++) {                                    \
        const uint first = ahead.v.at[2 * i * V_LOADS + n][a];                   \
        const uint second = ahead.v.at[(2 * i + 1) * V_LOADS + n][a];            \
        set_right(b, i, first & 0xffffu | second << 16);                         \
        set_right(b, 2 + i, first >> 16 | second & 0xffff0000u);                 \
    }

#endif
