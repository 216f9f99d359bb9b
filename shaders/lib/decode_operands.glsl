// decode_operands: how queries, keys and values become operands of matrices
// (lib/decode_matrix.glsl), whose elements are where lib/quads.glsl says.
//
// Keys and values come from memory as they are, 16 bytes of a row to a lane, and become operands
// without shared memory: which column of Q and K is which k of a product does not matter, as
// long as both have the same, nor which column of V is which of O, as long as it is known when O is
// written.
//
//     a load of K   lane 4g + t: columns 32*n + 8*t of key g: elements 0 to 3 of a lane for the
//                   products 2n and 2n+1, and of key g + 8 elements 4 to 7
//     a load of V   lane 4g + t: columns 64*n + 8*g of keys 2t, 2t+1, 2t+8, 2t+9; columns 2a and
//                   2a+1 of them are elements 0 to 3 and 4 to 7 of product 4n + a
//     so O          of product 4n + a, row g: columns 64*n + 16*t + 2a, + 8, + 1, + 9
//
// Of a cache of 8 bits the same loads have 8 bytes, and there are twice as many keys in a tile
// (lib/decode_loads8.glsl). With other layouts of O its columns are where lib/decode_products16.glsl
// and lib/decode_products8.glsl say.

#ifdef CACHE8  // operands are float16 whatever the format of Q
#undef T
#undef WEIGHT_TO_T
#define T float16_t
#define WEIGHT_TO_T(x) T(x)
#endif

#define MatA coopmat<T, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MatB coopmat<T, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define MatC coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

const uint ROW_TILES = (ROWS + 15) / 16;  // of scores
const uint ROW_EIGHTS = ROWS / 8;
const uint COLUMN_PARTS = VALUE_DIM > 128 ? 2 : 1;
const uint STRIPES = SUBGROUPS / COLUMN_PARTS;
const uint K_LOADS = (HEAD_DIM + 31) / 32;
const uint V_LOADS = (VALUE_DIM + 64 * COLUMN_PARTS - 1) / (64 * COLUMN_PARTS);

// O is in matrices of type MatO, O_ROWS times PRODUCTS for each load of V. Q_EIGHTS is how many eight rows of
// each matrix of Q there are in q_rows, and FIT_FLOATS the size of O of all stripes in shared memory.
#ifdef CACHE8
#define MatO coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define MatW coopmat<T, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
const uint O_ROWS = ROW_EIGHTS;
const uint PRODUCTS = 4;
const uint Q_EIGHTS = 2;
const uint FIT_FLOATS = 4096;
#else
#define MatO MatC
const bool PAIRED = ROWS == 8;  // lib/decode_products16.glsl
const uint O_ROWS = ROW_TILES;
const uint PRODUCTS = PAIRED ? 2 : 4;
const uint Q_EIGHTS = PAIRED ? 1 : 2;
const uint FIT_FLOATS = PAIRED ? 8192 : 4096;  // of 8 rows there are more stripes
#endif
const uint O_MATRICES = V_LOADS * PRODUCTS;  // of each O_ROWS

// Rows at a time whose O of all stripes is in shared memory: FIT_FLOATS, with two at least.
const uint FIT_ROWS = FIT_FLOATS / (STRIPES * VALUE_DIM);
const uint PASS_ROWS = FIT_ROWS >= 16 ? 16 : FIT_ROWS >= 8 ? 8 : FIT_ROWS >= 4 ? 4 : 2;

// Sums of a subgroup: of row g of each eight rows the maximum m, the lane's part of l; O.
struct Sums {
    float m[ROW_EIGHTS], l[ROW_EIGHTS];
    MatO o[O_ROWS * O_MATRICES];
};

#include "quads.glsl"

uint column_part() { return gl_SubgroupID % COLUMN_PARTS; }
uint stripe() { return gl_SubgroupID / COLUMN_PARTS; }

// q_rows has a lane's operands of Q: 16 bytes of row g, and of row g + 8, for each two products.
const uint Q_WORDS = ROW_TILES * K_LOADS * Q_EIGHTS * 32;

shared uvec4 q_rows[Q_WORDS];

DEFINE_SET(MatA, set_left)
DEFINE_SET(MatB, set_right)
#ifdef CACHE8
DEFINE_SET(MatW, set_weights)
#endif

#ifndef CACHE8
const uint Q_LOADS = (Q_WORDS + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;  // of an invocation

// WORD_ROW(i) and WORD_COLUMN(i) are where word number i of q_rows is of.
#define WORD_ROW(i) (i / 32 % Q_EIGHTS * 8 + i % 32 / 4 + i / (K_LOADS * Q_EIGHTS * 32) * 16)
#define WORD_COLUMN(i) (i / (Q_EIGHTS * 32) % K_LOADS * 32 + i % 4 * 8)

uvec4 load_q_word(const Part part, const uint i) {
    const uint r = WORD_ROW(i);
    const uint col = WORD_COLUMN(i);
    return HEAD_DIM % 32 == 0 || col < HEAD_DIM ? load_q(q_at(part, r) + col, VEC) : uvec4(0);
}

// share_q puts an invocation's words of q_rows there. The whole workgroup calls it, with a barrier
// since q_rows were read.
void share_q(const uvec4 words[Q_LOADS]) {
    [[unroll]] for (uint n = 0; n < Q_LOADS; n++) {
        const uint i = n * WORKGROUP_SIZE + gl_LocalInvocationIndex;
        if (Q_WORDS % WORKGROUP_SIZE == 0 || i < Q_WORDS) {
            q_rows[i] = words[n];
        }
    }
    barrier();  // q_rows are written
}
#endif

// key_of returns key number j of a tile, or the nearest that some row sees.
uint key_of(const Part part, const uint tile, const uint j) {
    return uint(clamp(int(tile * TILE + j), part.sequence.from, part.end - 1));
}

// value_key returns which key of a tile a lane's load number j of V is of.
uint value_key(const uint j) { return lane_t() * 2 + j % 2 + j / 2 * 8; }

uint at_key(const uint key, const uint page, const uint stride_b, const uint stride_s) {
    return page * stride_b + (PAGE_SIZE > 0 ? key % PAGE_SIZE : key) * stride_s;
}

#ifdef CACHE8
#include "decode_loads8.glsl"
#else

// A page of 8 keys is half a tile: keys g and 2t, 2t+1 are of the first, the others of the second.
const uint HALVES = PAGE_SIZE == 8 ? 2 : 1;

#define Pages uvec2

// pages_of returns the pages of both halves of a tile.
Pages pages_of(const Part part, const uint tile) {
    if (PAGE_SIZE == 0) {
        return uvec2(part.cache);
    }
    const uint first = look_up(part, key_of(part, tile, 0));
    return uvec2(first, HALVES == 2 ? look_up(part, key_of(part, tile, 8)) : first);
}

// Words are a lane's 16 bytes of keys g and g + 8, or of its four keys of V, of a tile.
struct Keys { uvec4 at[2 * K_LOADS]; };

struct Values { uvec4 at[4 * V_LOADS]; };

// Lanes beyond a row load its start, so that no load is conditional, and take zeros.
void load_keys(const Part part, const uint tile, const uvec2 page, inout Keys k) {
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const uint at = p.k_offset + part.kv_head * p.k_stride_h + at_key(key_of(part, tile, lane_g() + 8 * i), page[i], p.k_stride_b, p.k_stride_s);
        [[unroll]] for (uint n = 0; n < K_LOADS; n++) {
            const uint col = n * 32 + lane_t() * 8;
            const bool has = HEAD_DIM % 32 == 0 || col < HEAD_DIM;
            const uvec4 x = load_k(at + (has ? col : 0), VEC);
            k.at[i * K_LOADS + n] = has ? x : uvec4(0);
        }
    }
}

uint value_column(const uint n) { return (column_part() * V_LOADS + n) * 64 + lane_g() * 8; }

void load_values(const Part part, const uint tile, const uvec2 page, inout Values v) {
    [[unroll]] for (uint j = 0; j < 4; j++) {
        const uint at = p.v_offset + part.kv_head * p.v_stride_h + at_key(key_of(part, tile, value_key(j)), page[j / 2], p.v_stride_b, p.v_stride_s);
        [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
            const bool has = VALUE_DIM % (64 * COLUMN_PARTS) == 0 || value_column(n) < VALUE_DIM;
            const uvec4 x = load_v(at + (has ? value_column(n) : 0), VEC);
            v.at[j * V_LOADS + n] = has ? x : uvec4(0);
        }
    }
}

#endif
