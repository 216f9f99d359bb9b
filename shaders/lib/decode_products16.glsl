// decode_products16: what lib/decode_matrix.glsl does with keys and values of 16 bits;
// lib/decode_products8.glsl has the same names for 8 bits.
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

#define MatP MatA
#define MatV MatB

// A lane has EACH scores of each of its rows, of keys value_key(0), value_key(1), ... of a tile.
const uint EACH = 4;
const uint SCORES = ROW_EIGHTS * EACH;
struct Scores { float at[SCORES]; };

const uint CHAINS = ROW_TILES == 1 ? 2 : 1;  // sums of products of a score: one need not wait for the other
const uint SCORE_MATRICES = ROW_TILES * CHAINS;
const uint KEY_HALVES = 1;                   // of a tile, whose scores are in matrices of their own
const uint VALUE_HALVES = PAIRED ? 2 : 1;    // of a tile, whose weights are
const uint WEIGHT_MATRICES = ROW_TILES * VALUE_HALVES;

// share_early shares what waits for no length. load_first loads the first tile, if that is not done.
void share_early(const Ahead ahead) { share_q(ahead.q); }
void load_first(const Part part, const uint tile, inout Ahead ahead) {}

// row_scale returns what the products of row r are multiplied by.
float row_scale(const uint r) { return 1.0; }

// key_operand returns the keys of half h for product e of load n.
MatB key_operand(const Keys k, const uint n, const uint e, const uint h) {
    MatB b;
    [[unroll]] for (uint i = 0; i < 2; i++) {
        set_right(b, 2 * i, k.at[i * K_LOADS + n][2 * e]);
        set_right(b, 2 * i + 1, k.at[i * K_LOADS + n][2 * e + 1]);
    }
    return b;
}

// score_matrix returns which matrix of scores that product of rows r of matrices is added to.
uint score_matrix(const uint r, const uint e, const uint h) { return r * CHAINS + e % CHAINS; }

// Score number i of a lane is element element_of(i) of CHAINS matrices, the first of them matrix_of(i).
uint matrix_of(const uint i) { return i / 8 * CHAINS; }
uint element_of(const uint i) { return i % 8; }

// hide_values makes zeros of values that no row sees. A value that was loaded before the length was known
// may be anything.
void hide_values(const Part part, const uint tile, inout Values v) {
    if (ALONE) {
        [[unroll]] for (uint j = 0; j < 4; j++) {
            const bool seen = int(tile * TILE + value_key(j)) < part.end;
            [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
                v.at[j * V_LOADS + n] = seen ? v.at[j * V_LOADS + n] : uvec4(0);
            }
        }
    }
}

// o_matrix returns which matrix has the sums of eight rows, number r, and product number m of columns, of
// V_LOADS * 4, and o_element the first of the four elements of it that a lane has of them. alphas_of
// returns what elements 0 and 2, and 1 and 3, of them are multiplied by, made of the lane's alpha.
uint o_matrix(const uint r, const uint m) { return r / 2 * O_MATRICES + m % O_MATRICES; }
uint o_element(const uint r, const uint m) { return (PAIRED ? m / O_MATRICES : r % 2) * 4; }
vec2 alphas_of(const float alpha) { return vec2(alpha); }

// weight_operand returns matrix number i of weights.
MatP weight_operand(const Scores weights, const uint i) {
    const uint n = SCORES / WEIGHT_MATRICES;
    MatP w;
    if (PAIRED) {
        set_left(w, 1, 0);
        set_left(w, 2, 0);
    }
    [[unroll]] for (uint j = 0; j < n; j++) {
        w[j] = WEIGHT_TO_T(weights.at[i * n + j]);
        if (PAIRED) {
            w[6 + j] = w[j];
        }
    }
    return w;
}

// value_operand returns the values of half h for product a of load n. PAIRED, its first keys are the
// half's, and its others the same keys with the columns of a later product.
MatV value_operand(const Values v, const uint n, const uint a, const uint h) {
    MatV b;
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const uint m = n * PRODUCTS + a + (PAIRED ? i * O_MATRICES : 0);
        const uint key = 2 * (PAIRED ? h : i);
        const uint first = v.at[key * V_LOADS + m / 4][m % 4];
        const uint second = v.at[(key + 1) * V_LOADS + m / 4][m % 4];
        set_right(b, i, first & 0xffffu | second << 16);
        set_right(b, 2 + i, first >> 16 | second & 0xffff0000u);
    }
    return b;
}

MatO add_product(const MatP w, const MatV v, const MatO o) { return coopMatMulAdd(w, v, o); }

// A lane has sums of SUM_ROWS rows, sum_row(i) of eight rows sum_eight(i), and of each load n of V SUM_QUADS
// times four columns from sum_column(n, c) on: of products sum_product(n, c) and the next, the elements
// sum_element(i, c) and two after it of those from o_element on.
const uint SUM_ROWS = ROW_EIGHTS;
const uint SUM_QUADS = 4;
uint sum_row(const uint i) { return i * 8 + lane_g(); }
uint sum_eight(const uint i) { return i; }
uint sum_column(const uint n, const uint c) { return (column_part() * V_LOADS + n) * 64 + lane_t() * 16 + c * 4; }
uint sum_product(const uint n, const uint c) { return n * 4 + c % 2 * 2; }
uint sum_element(const uint i, const uint c) { return c / 2; }
