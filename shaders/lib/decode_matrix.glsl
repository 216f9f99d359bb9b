// decode_matrix: the online softmax of a subgroup over its keys, on matrices whose elements are
// where NVIDIA keeps them (chips.MatrixLayout.Quads): element i of lane 4g + t, of accumulators
// and left matrices, is that of row g + i/4*8 and column 2t + i%2 + i%4/2*8, and right matrices
// are left ones with rows and columns exchanged (attention_decode.comp).
//
//     S = Q * Kᵀ   16 rows by the 16 keys of a tile
//     O = P * V    16 rows by columns
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
// While a tile's values are multiplied the keys of the next are on their way, and while its keys
// are, the values. A unit has ROW_TILES matrices of rows, for which keys and values are
// loaded once. Q waits in shared memory. With COLUMN_PARTS subgroups for the same keys each has a
// part of V's columns, where all of O would not fit in registers; the second to load a key finds
// it in a cache.
#ifndef LIB_DECODE_MATRIX_GLSL
#define LIB_DECODE_MATRIX_GLSL

#define MatA coopmat<T, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MatB coopmat<T, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define MatC coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

#ifdef ELEM_F16
#define FROM_BITS(x) uint16BitsToHalf(uint16_t(x))
#else
#define FROM_BITS(x) uintBitsToBFloat16EXT(uint16_t(x))
#endif

const uint ROW_TILES = ROWS / 16;
const uint COLUMN_PARTS = VALUE_DIM > 128 ? 2 : 1;
const uint STRIPES = SUBGROUPS / COLUMN_PARTS;
const uint K_LOADS = (HEAD_DIM + 31) / 32;
const uint V_LOADS = (VALUE_DIM + 64 * COLUMN_PARTS - 1) / (64 * COLUMN_PARTS);

// Rows at a time whose O of all stripes is in shared memory: about 16 KiB, with two at least.
const uint FIT_ROWS = 4096 / (STRIPES * VALUE_DIM);
const uint PASS_ROWS = FIT_ROWS >= 16 ? 16 : FIT_ROWS >= 8 ? 8 : FIT_ROWS >= 4 ? 4 : 2;

// Sums of a subgroup: of rows g and g + 8 of each matrix the maximum m, the lane's part of l; O.
struct Sums {
    float m[ROW_TILES * 2], l[ROW_TILES * 2];
    MatC o[ROW_TILES * V_LOADS * 4];
};

uint lane_g() {
    return gl_SubgroupInvocationID / 4;
}

uint lane_t() {
    return gl_SubgroupInvocationID % 4;
}

uint column_part() {
    return gl_SubgroupID % COLUMN_PARTS;
}

uint stripe() {
    return gl_SubgroupID / COLUMN_PARTS;
}

// q_rows has a lane's operands of Q: 16 bytes of row g, and of row g + 8, for each two products.
shared uvec4 q_rows[ROW_TILES * K_LOADS * 2 * 32];

// DEFINE_SET(Mat, set) makes `set(m, i, x)`: elements 2i and 2i+1 of m are the halves of x.
#define DEFINE_SET(Mat, set)                       \
    void set(inout Mat m, const uint i, const uint x) {  \
        m[2 * i] = FROM_BITS(x & 0xffffu);         \
        m[2 * i + 1] = FROM_BITS(x >> 16);         \
    }

DEFINE_SET(MatA, set_left)
DEFINE_SET(MatB, set_right)

// share_q puts the operands of the part's rows into shared memory. The whole workgroup calls it.
void share_q(const Part part) {
    barrier();  // q_rows of the part before are read
    for (uint i = gl_LocalInvocationIndex; i < ROW_TILES * K_LOADS * 2 * 32; i += WORKGROUP_SIZE) {
        const uint r = i / 32 % 2 * 8 + i % 32 / 4 + i / (K_LOADS * 64) * 16;
        const uint col = i / 64 % K_LOADS * 32 + i % 4 * 8;
        q_rows[i] = HEAD_DIM % 32 == 0 || col < HEAD_DIM ? load_q(q_at(part, r) + col, VEC) : uvec4(0);
    }
    barrier();  // q_rows are written
}

// key_of returns key number j of a tile, or the nearest that some row sees.
uint key_of(const Part part, const uint tile, const uint j) {
    return uint(clamp(int(tile * TILE + j), part.sequence.from, part.end - 1));
}

// value_key returns which key of a tile a lane's load number j of V is of.
uint value_key(const uint j) {
    return lane_t() * 2 + j % 2 + j / 2 * 8;
}

uint at_key(const uint key, const uint page, const uint stride_b, const uint stride_s) {
    return page * stride_b + (PAGE_SIZE > 0 ? key % PAGE_SIZE : key) * stride_s;
}

// A page of 8 keys is half a tile: keys g and 2t, 2t+1 are of the first, the others of the second.
const uint HALVES = PAGE_SIZE == 8 ? 2 : 1;

// pages_of returns the pages of both halves of a tile.
uvec2 pages_of(const Part part, const uint tile) {
    if (PAGE_SIZE == 0) {
        return uvec2(part.cache);
    }
    const uint first = look_up(part, key_of(part, tile, 0));
    return uvec2(first, HALVES == 2 ? look_up(part, key_of(part, tile, 8)) : first);
}

// Words are a lane's 16 bytes of keys g and g + 8, or of its four keys of V, of a tile.
struct Keys {
    uvec4 at[2 * K_LOADS];
};

struct Values {
    uvec4 at[4 * V_LOADS];
};

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

uint value_column(const uint n) {
    return (column_part() * V_LOADS + n) * 64 + lane_g() * 8;
}

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

// read_keys sums up the part's keys. Each subgroup takes every STRIPES-th tile.
void read_keys(const Part part, inout Sums sums) {
    [[unroll]] for (uint i = 0; i < ROW_TILES * V_LOADS * 4; i++) {
        sums.o[i] = MatC(0.0);
    }
    [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
        sums.m[i] = MAX_INIT;
        sums.l[i] = 0.0;
    }
    if (part.end <= part.sequence.from) {
        return;
    }
    const uint end = min(part.first + part.tiles, (uint(part.end) + TILE - 1) / TILE);
    uint tile = part.first + stripe();
    Keys k;
    Values v;
    uvec2 next_pages = uvec2(part.cache);
    if (tile < end) {
        const uvec2 pages = pages_of(part, tile);
        load_keys(part, tile, pages, k);
        load_values(part, tile, pages, v);
        if (PAGE_SIZE > 0 && tile + STRIPES < end) {
            next_pages = pages_of(part, tile + STRIPES);
        }
    }
    share_q(part);
    Row rows[ROW_TILES * 2];
    [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
        rows[i] = row_of(part, i * 8 + lane_g());
    }
    const ivec2 whole = visible_to_all(part);
    [[dont_unroll]] for (; tile < end; tile += STRIPES) {
        const uint next = tile + STRIPES;
        const uvec2 pages = next_pages;
        if (PAGE_SIZE > 0 && next + STRIPES < end) {
            next_pages = pages_of(part, next + STRIPES);
        }
        MatC s[ROW_TILES * 2];  // two sums, of which one need not wait for the other
        [[unroll]] for (uint r = 0; r < ROW_TILES * 2; r++) {
            s[r] = MatC(0.0);
        }
        [[unroll]] for (uint n = 0; n < K_LOADS; n++) {
            [[unroll]] for (uint e = 0; e < 2; e++) {
                MatB b;
                set_right(b, 0, k.at[n][2 * e]);
                set_right(b, 1, k.at[n][2 * e + 1]);
                set_right(b, 2, k.at[K_LOADS + n][2 * e]);
                set_right(b, 3, k.at[K_LOADS + n][2 * e + 1]);
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    const uint at = (r * K_LOADS + n) * 64 + gl_SubgroupInvocationID;
                    const uvec4 x = q_rows[at];
                    const uvec4 y = q_rows[at + 32];
                    MatA a;
                    set_left(a, 0, x[2 * e]);
                    set_left(a, 1, x[2 * e + 1]);
                    set_left(a, 2, y[2 * e]);
                    set_left(a, 3, y[2 * e + 1]);
                    s[2 * r + e] = coopMatMulAdd(a, b, s[2 * r + e]);
                }
            }
        }
        if (next < end) {
            load_keys(part, next, pages, k);
        }

        float x[ROW_TILES * 8];
        bool above = false;
        [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {
            x[i] = (s[i / 8 * 2][i % 8] + s[i / 8 * 2 + 1][i % 8]) * p.scale_log2;
        }
        if (int(tile * TILE) >= whole.x && int(tile * TILE + TILE) <= whole.y) {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {
                x[i] = logit(rows[i / 4], part, x[i], int(tile * TILE + value_key(i % 4)));
            }
        } else {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {
                x[i] = score(rows[i / 4], part, x[i], int(tile * TILE + value_key(i % 4)));
            }
        }
        [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {
            above = above || x[i] > sums.m[i / 4] + SLACK;
        }
        if (subgroupAny(above)) {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
                float top = max(max(x[4 * i], x[4 * i + 1]), max(x[4 * i + 2], x[4 * i + 3]));
                top = max(top, subgroupShuffleXor(top, 1));
                top = max(sums.m[i], max(top, subgroupShuffleXor(top, 2)));
                const float alpha = exp2(sums.m[i] - top);
                sums.m[i] = top;
                sums.l[i] *= alpha;
                [[unroll]] for (uint j = 0; j < V_LOADS * 4; j++) {
                    [[unroll]] for (uint e = 0; e < 4; e++) {
                        sums.o[i / 2 * V_LOADS * 4 + j][i % 2 * 4 + e] *= alpha;
                    }
                }
            }
        }
        MatA w[ROW_TILES];
        [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {
            const float y = exp2(x[i] - sums.m[i / 4]);
            sums.l[i / 4] += y;
            w[i / 8][i % 8] = WEIGHT_TO_T(y);
        }
        [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
            [[unroll]] for (uint a = 0; a < 4; a++) {
                MatB b;
                [[unroll]] for (uint i = 0; i < 2; i++) {
                    const uint first = v.at[2 * i * V_LOADS + n][a];
                    const uint second = v.at[(2 * i + 1) * V_LOADS + n][a];
                    set_right(b, i, first & 0xffffu | second << 16);
                    set_right(b, 2 + i, first >> 16 | second & 0xffff0000u);
                }
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    const uint at = r * V_LOADS * 4 + 4 * n + a;
                    sums.o[at] = coopMatMulAdd(w[r], b, sums.o[at]);
                }
            }
        }
        if (next < end) {
            load_values(part, next, pages, v);
        }
    }
}

#include "decode_combine.glsl"

// share_rows adds up the lanes' parts, and puts m and l of each row into shared memory.
void share_rows(inout Sums sums) {
    [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
        sums.l[i] += subgroupShuffleXor(sums.l[i], 1);
        sums.l[i] += subgroupShuffleXor(sums.l[i], 2);
        if (lane_t() == 0 && column_part() == 0) {
            row_sums[stripe() * ROWS + i * 8 + lane_g()] = vec2(sums.m[i], sums.l[i]);
        }
    }
}

// put_rows puts O of the rows r0 to r0+PASS_ROWS-1 into shared memory.
void put_rows(const Sums sums, const uint r0) {
    [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
        const uint r = i * 8 + lane_g();
        if (r - r0 < PASS_ROWS) {
            [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
                [[unroll]] for (uint c = 0; c < 4; c++) {  // four columns of eight of sixteen
                    const uint col = (column_part() * V_LOADS + n) * 64 + lane_t() * 16 + c * 4;
                    const uint a = i / 2 * V_LOADS * 4 + n * 4 + c % 2 * 2;
                    const uint e = i % 2 * 4 + c / 2;
                    if (VALUE_DIM % (64 * COLUMN_PARTS) == 0 || col < VALUE_DIM) {
                        put_quad(r - r0, col / 4, vec4(sums.o[a][e], sums.o[a][e + 2], sums.o[a + 1][e], sums.o[a + 1][e + 2]));
                    }
                }
            }
        }
    }
}

DEFINE_COMBINE_SUBGROUPS

#endif
