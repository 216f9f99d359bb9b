// direct_operands: Q, K and V from memory to operands of products, and where O is then
// (attention_fwd_direct.comp).
//
// With QUADS elements of matrices are where lib/quads.glsl says. Rows come from memory as they are,
// 16 bytes to a lane, as in lib/decode_operands.glsl: which column of Q and K is which k of a product
// does not matter, as long as both have the same, nor which column of V is which of O, as long as it
// is known when O is written.
//
//     a load of Q or K  lane 4g + t: columns 32*w + 8*t of row g, and of row g + 8: the words 0 and 1
//                       for the product 2w, 2 and 3 for 2w + 1
//     a load of V       lane 4g + t: columns 64*w + 8*g of keys 2t, 2t+1, 2t+8, 2t+9: columns 2a and
//                       2a+1 of them are elements 0 to 3 and 4 to 7 of the product 4w + a
//     so O              of product 4w + a, row g: columns 64*w + 16*t + 2a, + 8, + 1, + 9
//
// Without QUADS operands are made element by element, which takes long: the definition, and what
// other devices test.

const uint SUBGROUP_ROWS = ROW_TILES * MAT_M;
const uint BLOCK_M = NUM_SUBGROUPS / STRIPES * SUBGROUP_ROWS;
const uint COL_TILES = BLOCK_N / MAT_N;
const uint K_LOADS = (HEAD_DIM + 31) / 32;
const uint V_LOADS = (HEAD_DIM + 63) / 64;
const uint DIM_TILES = QUADS ? 2 * K_LOADS : (HEAD_DIM + MAT_N - 1) / MAT_N;
const uint VALUE_TILES = QUADS ? 4 * V_LOADS : DIM_TILES;

#include "quads.glsl"

DEFINE_SET(MatA, set_left)
DEFINE_SET(MatB, set_right)

// Words are the words that a lane has loaded of a tile of keys, and of their values.
struct Keys { uvec4 at[COL_TILES * 2 * K_LOADS]; };

struct Values { uvec4 at[COL_TILES * 4 * V_LOADS]; };

// key_at returns key number j of the tile that begins at key col0, or the last key.
uint key_at(const int col0, const uint j) { return min(uint(col0) + j, p.seq_kv - 1); }

// value_key returns which of 16 keys load number j of V of a lane is of.
uint value_key(const uint j) { return lane_t() * 2 + j % 2 + j / 2 * 8; }

// load_keys loads the tile of keys that begins at key col0; the first key is at `base`. Lanes
// beyond a row load its start, so that no load is conditional, and take zeros.
void load_keys(const uint base, const int col0, inout Keys k) {
    if (!QUADS) {
        return;
    }
    [[unroll]] for (uint i = 0; i < COL_TILES * 2; i++) {
        const uint at = base + key_at(col0, i * 8 + lane_g()) * p.k_stride_s;
        [[unroll]] for (uint w = 0; w < K_LOADS; w++) {
            const uint col = w * 32 + lane_t() * 8;
            const bool has = HEAD_DIM % 32 == 0 || col < HEAD_DIM;
            const uvec4 x = load_k(at + (has ? col : 0));
            k.at[i * K_LOADS + w] = has ? x : uvec4(0);
        }
    }
}

void load_values(const uint base, const int col0, inout Values v) {
    if (!QUADS) {
        return;
    }
    [[unroll]] for (uint i = 0; i < COL_TILES * 4; i++) {
        const uint at = base + key_at(col0, i / 4 * 16 + value_key(i % 4)) * p.v_stride_s;
        [[unroll]] for (uint w = 0; w < V_LOADS; w++) {
            const uint col = w * 64 + lane_g() * 8;
            const bool has = HEAD_DIM % 64 == 0 || col < HEAD_DIM;
            const uvec4 x = load_v(at + (has ? col : 0));
            v.at[i * V_LOADS + w] = has ? x : uvec4(0);
        }
    }
}

// left_elements returns the rows of Q from the one at `at` on, `rows` of them or the last again, and
// columns of product number d.
MatA left_elements(const MatC index, const uint at, const uint rows, const uint d) {
    MatC c;
    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
        const uint row = min(uint(index[i]) / MAT_N, rows - 1);
        const uint col = d * MAT_N + uint(index[i]) % MAT_N;
        c[i] = col < HEAD_DIM ? WIDEN(uint(q16[at + row * p.q_stride_s + col]) ^ p.q_sign & 0xffffu) : 0.0;
    }
    return MatA(c);
}

// key_operand returns the operand of Kᵀ of product number d, of matrix n of a tile's keys.
MatB key_operand(const Keys k, const MatC index, const uint base, const int col0, const uint n, const uint d) {
    MatB b;
    if (QUADS) {
        [[unroll]] for (uint i = 0; i < 2; i++) {
            const uvec4 x = k.at[(n * 2 + i) * K_LOADS + d / 2];
            set_right(b, 2 * i, x[d % 2 * 2]);
            set_right(b, 2 * i + 1, x[d % 2 * 2 + 1]);
        }
        return b;
    }
    MatC c;
    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
        const uint row = d * MAT_N + uint(index[i]) / MAT_N;
        const uint at = base + key_at(col0, n * MAT_N + uint(index[i]) % MAT_N) * p.k_stride_s + row;
        c[i] = row < HEAD_DIM ? WIDEN(k16[at]) : 0.0;
    }
    return MatB(c);
}

// value_operand returns the operand of V of product number d, of matrix n of a tile's keys.
MatB value_operand(const Values v, const MatC index, const uint base, const int col0, const uint n, const uint d) {
    MatB b;
    if (QUADS) {
        [[unroll]] for (uint i = 0; i < 2; i++) {
            const uint first = v.at[(n * 4 + 2 * i) * V_LOADS + d / 4][d % 4];
            const uint second = v.at[(n * 4 + 2 * i + 1) * V_LOADS + d / 4][d % 4];
            set_right(b, i, first & 0xffffu | second << 16);
            set_right(b, 2 + i, first >> 16 | second & 0xffff0000u);
        }
        return b;
    }
    MatC c;
    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
        const uint col = d * MAT_N + uint(index[i]) % MAT_N;
        const uint at = base + key_at(col0, n * MAT_N + uint(index[i]) / MAT_N) * p.v_stride_s + col;
        c[i] = col < HEAD_DIM ? WIDEN(v16[at]) : 0.0;
    }
    return MatB(c);
}

// Four columns of O are part 4*w + c of a lane's: columns 64*w + 16*t + 4*c. With QUADS a lane has
// all of them.
const uint PARTS = 4 * V_LOADS;

uint part_column(const uint part, const uint t) { return part / 4 * 64 + t * 16 + part % 4 * 4; }
