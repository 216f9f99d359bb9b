// decode_matrix: the online softmax of a subgroup over its keys, on matrices
// (attention_decode.comp; lib/decode_operands.glsl has the operands).
//
//     S = Q * Kᵀ   16 rows by the 16 keys of a tile
//     O = P * V    16 rows by columns
//
// While a tile's values are multiplied the keys of the next are on their way, and while its keys
// are, the values. A unit has ROW_TILES matrices of rows, for which keys and values are
// loaded once. Q waits in shared memory. With COLUMN_PARTS subgroups for the same keys each has a
// part of V's columns, where all of O would not fit in registers; the second to load a key finds
// it in a cache.
#ifndef LIB_DECODE_MATRIX_GLSL
#define LIB_DECODE_MATRIX_GLSL

#include "decode_operands.glsl"

// Ahead is what a part begins with: Q, and a stripe's first keys and values.
struct Ahead {
    uvec4 q[Q_LOADS];
    Keys k;
    Values v;
};

// load_ahead loads it. Where workgroups are ALONE, any tile is one that it may load.
void load_ahead(const Part part, inout Ahead ahead) {
    [[unroll]] for (uint n = 0; n < Q_LOADS; n++) {
        ahead.q[n] = load_q_word(part, min(n * WORKGROUP_SIZE + gl_LocalInvocationIndex, Q_WORDS - 1));
    }
    const uint tile = part.first + stripe() * apart();
    if (ALONE && !WINDOW && !LEFT_PAD || tile < part.last) {
        const uvec2 pages = pages_of(part, tile);
        load_keys(part, tile, pages, ahead.k);
        load_values(part, tile, pages, ahead.v);
    }
}

// check_ahead reports the pages of the first tile that are none.
void check_ahead(const Part part) {
    const uint tile = part.first + stripe() * apart();
    if (PAGE_SIZE > 0 && tile < part.last) {
        pages_of(part, tile);
    }
}

// read_keys sums up the part's keys. Each subgroup takes every STRIPES-th tile.
void read_keys(const Part part, inout Ahead ahead, inout Sums sums) {
    [[unroll]] for (uint i = 0; i < ROW_TILES * V_LOADS * 4; i++) {
        sums.o[i] = MatC(0.0);
    }
    [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
        sums.m[i] = MAX_INIT;
        sums.l[i] = 0.0;
    }
    share_q(ahead.q);
    if (part.end <= part.sequence.from) {
        return;
    }
    const uint end = part.last;
    const uint step = STRIPES * apart();
    uint tile = part.first + stripe() * apart();
    uvec2 next_pages = uvec2(part.cache);
    if (PAGE_SIZE > 0 && tile + step < end) {
        next_pages = pages_of(part, tile + step);
    }
    Row rows[ROW_TILES * 2];
    [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
        rows[i] = row_of(part, i * 8 + lane_g());
    }
    const ivec2 whole = visible_to_all(part);
    [[dont_unroll]] for (; tile < end; tile += step) {
        const uint next = tile + step;
        const uvec2 pages = next_pages;
        if (PAGE_SIZE > 0 && next + step < end) {
            next_pages = pages_of(part, next + step);
        }
        MatC s[ROW_TILES * CHAINS];
        [[unroll]] for (uint r = 0; r < ROW_TILES * CHAINS; r++) {
            s[r] = MatC(0.0);
        }
        [[unroll]] for (uint n = 0; n < K_LOADS; n++) {
            [[unroll]] for (uint e = 0; e < 2; e++) {
                MatB b;
                set_right(b, 0, ahead.k.at[n][2 * e]);
                set_right(b, 1, ahead.k.at[n][2 * e + 1]);
                set_right(b, 2, ahead.k.at[K_LOADS + n][2 * e]);
                set_right(b, 3, ahead.k.at[K_LOADS + n][2 * e + 1]);
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    const uint at = (r * K_LOADS + n) * 64 + gl_SubgroupInvocationID;
                    const uvec4 x = q_rows[at];
                    const uvec4 y = q_rows[at + 32];
                    MatA a;
                    set_left(a, 0, x[2 * e]);
                    set_left(a, 1, x[2 * e + 1]);
                    set_left(a, 2, y[2 * e]);
                    set_left(a, 3, y[2 * e + 1]);
                    s[r * CHAINS + e % CHAINS] = coopMatMulAdd(a, b, s[r * CHAINS + e % CHAINS]);
                }
            }
        }
        if (next < end) {
            load_keys(part, next, pages, ahead.k);
        }

        float x[ROW_TILES * 8];
        bool above = false;
        [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {
            const float y = s[i / 8 * CHAINS][i % 8];
            x[i] = (CHAINS == 1 ? y : y + s[i / 8 * CHAINS + CHAINS - 1][i % 8]) * p.scale_log2;
        }
        if (int(tile * TILE) >= whole.x && int(tile * TILE + TILE) <= whole.y) {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {
                x[i] = logit(rows[i / 4], part, x[i], int(tile * TILE + value_key(i % 4)));
            }
        } else {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 8; i++) {
                x[i] = score(rows[i / 4], part, x[i], int(tile * TILE + value_key(i % 4)));
            }
            if (ALONE) {  // a value that was loaded before the length was known may be anything
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    const bool seen = int(tile * TILE + value_key(j)) < part.end;
                    [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
                        ahead.v.at[j * V_LOADS + n] = seen ? ahead.v.at[j * V_LOADS + n] : uvec4(0);
                    }
                }
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
                    const uint first = ahead.v.at[2 * i * V_LOADS + n][a];
                    const uint second = ahead.v.at[(2 * i + 1) * V_LOADS + n][a];
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
            load_values(part, next, pages, ahead.v);
        }
    }
}

#include "decode_matrix_rows.glsl"

#endif
