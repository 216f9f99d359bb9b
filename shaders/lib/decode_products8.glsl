// decode_products8: what lib/decode_matrix.glsl does with keys and values of 8 bits, on matrices of
// float16; the names are as in lib/decode_products16.glsl. Tiles may have twice as many keys, as
// these have half the bytes.
//
// O is transposed, 16 columns by 8 rows: the few rows that share a key are columns of matrices that may be
// 8 wide, and take half the registers of matrices 16 wide. Weights are where the products need them: a lane's
// element i is of row g and key value_key(i).

#include "decode_operands.glsl"

#define MatP MatW
#define MatV MatA

const uint EACH = HALVES * 4;
const uint SCORES = ROW_EIGHTS * EACH;
struct Scores { float at[SCORES]; };

const uint CHAINS = 1;
const uint SCORE_MATRICES = ROW_TILES * HALVES;
const uint KEY_HALVES = HALVES;
const uint VALUE_HALVES = HALVES;
const uint WEIGHT_MATRICES = ROW_EIGHTS * HALVES;

// Nothing is loaded before anything else is known, and these are a stripe's keys and values of a tile.
struct Ahead {
    Keys k;
    Values v;
};

void load_ahead(const Part part, inout Ahead ahead) {}
void check_ahead(const Part part) {}
void share_early(const Ahead ahead) {}

void load_first(const Part part, const uint tile, inout Ahead ahead) {
    if (tile < part.last) {
        const uvec4 pages = pages_of(part, tile);
        load_keys(part, tile, pages, ahead.k);
        load_values(part, tile, pages, ahead.v);
    }
    share_q(part);
}

MatB key_operand(const Keys k, const uint n, const uint e, const uint h) {
    MatB b;
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const uint word = k.at[(2 * h + i) * K_LOADS + n][e];
        const uvec2 x = operands(word, key_scale(k, 2 * h + i, n));
        set_right(b, 2 * i, x.x);
        set_right(b, 2 * i + 1, x.y);
    }
    return b;
}

uint score_matrix(const uint r, const uint e, const uint h) { return HALVES * r + h; }
uint matrix_of(const uint i) { return i / (2 * EACH) * HALVES + i % EACH / 4; }
uint element_of(const uint i) { return i / EACH % 2 * 4 + i % 4; }

void hide_values(const Part part, const uint tile, inout Values v) {}

uint o_matrix(const uint r, const uint m) { return r * O_MATRICES + m; }
uint o_element(const uint r, const uint m) { return 0; }

// alphas_of returns the factors of rows 2t and 2t+1.
vec2 alphas_of(const float alpha) { return vec2(subgroupShuffle(alpha, lane_t() * 8), subgroupShuffle(alpha, lane_t() * 8 + 4)); }

MatP weight_operand(const Scores weights, const uint i) {
    MatP w;
    [[unroll]] for (uint j = 0; j < 4; j += 2) {
        set_weights(w, j / 2, packFloat2x16(f16vec2(weights.at[4 * i + j], weights.at[4 * i + j + 1])));
    }
    return w;
}

MatV value_operand(const Values v, const uint n, const uint a, const uint h) {
    MatV b;
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const uint first = v.at[(4 * h + 2 * i) * V_LOADS + n][a / 2];
        const uint second = v.at[(4 * h + 2 * i + 1) * V_LOADS + n][a / 2];
        const uint two = low_or_high(first, second, a % 2 == 1);
        const uvec2 x = operands(two, value_scales(v, 2 * (2 * h + i), n));
        set_left(b, i, x.x);
        set_left(b, 2 + i, x.y);
    }
    return b;
}

MatO add_product(const MatP w, const MatV v, const MatO o) { return coopMatMulAdd(v, w, o); }

const uint SUM_ROWS = 2 * ROW_EIGHTS;
const uint SUM_QUADS = 2;
uint sum_row(const uint i) { return i / 2 * 8 + lane_t() * 2 + i % 2; }
uint sum_eight(const uint i) { return i / 2; }
uint sum_column(const uint n, const uint c) { return value_column(n) + c * 4; }
uint sum_product(const uint n, const uint c) { return n * 4 + c * 2; }
uint sum_element(const uint i, const uint c) { return i % 2; }
