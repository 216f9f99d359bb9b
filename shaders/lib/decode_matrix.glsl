// decode_matrix: the online softmax of a subgroup over its keys, on matrices
// (attention_decode.comp; lib/decode_operands.glsl has the operands).
//
//     S = Q * Kᵀ   16 rows by the 16 or 32 keys of a tile
//     O = P * V    rows by columns, or transposed
//
// While a tile's values are multiplied the keys of the next are on their way, and while its keys
// are, the values. A unit has ROW_TILES matrices of rows, for which keys and values are
// loaded once. Q waits in shared memory. With COLUMN_PARTS subgroups for the same keys each has a
// part of V's columns, where all of O would not fit in registers; the second to load a key finds
// it in a cache.
//
// What depends on the bits of an element of the cache is in lib/decode_products16.glsl and
// lib/decode_products8.glsl.

#ifdef CACHE8
#include "decode_products8.glsl"
#else
#include "decode_products16.glsl"
#endif

// read_keys sums up the part's keys. Each subgroup takes every STRIPES-th tile.
void read_keys(const Part part, inout Ahead ahead, inout Sums sums) {
    [[unroll]] for (uint i = 0; i < O_ROWS * O_MATRICES; i++) {
        sums.o[i] = MatO(0.0);
    }
    [[unroll]] for (uint i = 0; i < ROW_EIGHTS; i++) {
        sums.m[i] = MAX_INIT;
        sums.l[i] = 0.0;
    }
    share_early(ahead);
    if (part.end <= part.sequence.from) {
        return;
    }
    const uint end = part.last;
    const uint step = STRIPES * apart();
    uint tile = part.first + stripe() * apart();
    Pages next_pages = Pages(part.cache);
    if (PAGE_SIZE > 0 && tile + step < end) {
        next_pages = pages_of(part, tile + step);
    }
    load_first(part, tile, ahead);
    Row rows[ROW_EIGHTS];
    float scale[ROW_EIGHTS];
    [[unroll]] for (uint i = 0; i < ROW_EIGHTS; i++) {
        rows[i] = row_of(part, i * 8 + lane_g());
        scale[i] = row_scale(i * 8 + lane_g()) * SCORE_SCALE(part);
    }
    const ivec2 whole = visible_to_all(part);
    [[dont_unroll]] for (; tile < end; tile += step) {
        const uint next = tile + step;
        const Pages pages = next_pages;
        if (PAGE_SIZE > 0 && next + step < end) {
            next_pages = pages_of(part, next + step);
        }
        MatC s[SCORE_MATRICES];
        [[unroll]] for (uint r = 0; r < SCORE_MATRICES; r++) {
            s[r] = MatC(0.0);
        }
        [[unroll]] for (uint n = 0; n < K_LOADS; n++) {
            [[unroll]] for (uint e = 0; e < 2; e++) {
                [[unroll]] for (uint h = 0; h < KEY_HALVES; h++) {
                    const MatB b = key_operand(ahead.k, n, e, h);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        const uint at = (r * K_LOADS + n) * Q_EIGHTS * 32 + gl_SubgroupInvocationID;
                        const uvec4 x = q_rows[at];
                        const uvec4 y = Q_EIGHTS == 1 ? uvec4(0) : q_rows[at + (Q_EIGHTS - 1) * 32];
                        MatA a;
                        set_left(a, 0, x[2 * e]);
                        set_left(a, 1, x[2 * e + 1]);
                        set_left(a, 2, y[2 * e]);
                        set_left(a, 3, y[2 * e + 1]);
                        s[score_matrix(r, e, h)] = coopMatMulAdd(a, b, s[score_matrix(r, e, h)]);
                    }
                }
            }
        }
        if (next < end) {
            load_keys(part, next, pages, ahead.k);
        }

        Scores x;  // of row g of each eight rows
        [[unroll]] for (uint i = 0; i < SCORES; i++) {
            float y = s[matrix_of(i)][element_of(i)];
            if (CHAINS == 2) {
                y += s[matrix_of(i) + CHAINS - 1][element_of(i)];
            }
            x.at[i] = y * scale[i / EACH];
        }
        if (int(tile * TILE) >= whole.x && int(tile * TILE + TILE) <= whole.y) {
            [[unroll]] for (uint i = 0; i < SCORES; i++) {
                x.at[i] = logit(rows[i / EACH], part, x.at[i], int(tile * TILE + value_key(i % EACH)));
            }
        } else {
            [[unroll]] for (uint i = 0; i < SCORES; i++) {
                x.at[i] = score(rows[i / EACH], part, x.at[i], int(tile * TILE + value_key(i % EACH)));
            }
            hide_values(part, tile, ahead.v);
        }
        float top[ROW_EIGHTS];
        bool above = false;
        [[unroll]] for (uint i = 0; i < ROW_EIGHTS; i++) {
            top[i] = x.at[EACH * i];
            [[unroll]] for (uint j = 1; j < EACH; j++) {
                top[i] = max(top[i], x.at[EACH * i + j]);
            }
            above = above || top[i] > sums.m[i] + SLACK;
        }
        if (subgroupAny(above)) {
            [[unroll]] for (uint i = 0; i < ROW_EIGHTS; i++) {
                top[i] = max(top[i], subgroupShuffleXor(top[i], 1));
                top[i] = max(sums.m[i], max(top[i], subgroupShuffleXor(top[i], 2)));
                const float alpha = exp2(sums.m[i] - top[i]);
                const vec2 alphas = alphas_of(alpha);
                sums.m[i] = top[i];
                sums.l[i] *= alpha;
                [[unroll]] for (uint j = 0; j < V_LOADS * 4; j++) {
                    [[unroll]] for (uint e = 0; e < 4; e++) {
                        sums.o[o_matrix(i, j)][o_element(i, j) + e] *= alphas[e % 2];
                    }
                }
            }
        }
        [[unroll]] for (uint i = 0; i < SCORES; i++) {
            x.at[i] = exp2(x.at[i] - sums.m[i / EACH]);
            sums.l[i / EACH] += x.at[i];
        }
        MatP w[WEIGHT_MATRICES];
        [[unroll]] for (uint i = 0; i < WEIGHT_MATRICES; i++) {
            w[i] = weight_operand(x, i);
        }
        [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
            [[unroll]] for (uint a = 0; a < PRODUCTS; a++) {
                [[unroll]] for (uint h = 0; h < VALUE_HALVES; h++) {
                    const MatV b = value_operand(ahead.v, n, a, h);
                    [[unroll]] for (uint r = 0; r < O_ROWS; r++) {
                        const uint at = r * O_MATRICES + n * PRODUCTS + a;
                        sums.o[at] = add_product(w[r * VALUE_HALVES + h], b, sums.o[at]);
                    }
                }
            }
        }
        if (next < end) {
            load_values(part, next, pages, ahead.v);
        }
    }
}

#include "decode_combine.glsl"

// share_rows adds up the lanes' parts, and puts m and l of each row into shared memory.
void share_rows(inout Sums sums) {
    [[unroll]] for (uint i = 0; i < ROW_EIGHTS; i++) {
        sums.l[i] += subgroupShuffleXor(sums.l[i], 1);
        sums.l[i] += subgroupShuffleXor(sums.l[i], 2);
        if (lane_t() == 0 && column_part() == 0) {
            row_sums[stripe() * ROWS + i * 8 + lane_g()] = vec2(sums.m[i], sums.l[i]);
        }
    }
}

// put_rows puts O of the rows r0 to r0+PASS_ROWS-1 into shared memory.
void put_rows(const Sums sums, const uint r0) {
    [[unroll]] for (uint i = 0; i < SUM_ROWS; i++) {
        const uint r = sum_row(i);
        if (r - r0 < PASS_ROWS) {
            [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
                [[unroll]] for (uint c = 0; c < SUM_QUADS; c++) {
                    const uint col = sum_column(n, c);
                    const uint m = sum_product(n, c);
                    const uint a = o_matrix(sum_eight(i), m);
                    const uint b = o_matrix(sum_eight(i), m + 1);
                    const uint e = o_element(sum_eight(i), m) + sum_element(i, c);
                    const uint f = o_element(sum_eight(i), m + 1) + sum_element(i, c);
                    if (VALUE_DIM % (64 * COLUMN_PARTS) == 0 || col < VALUE_DIM) {
                        put_quad(r - r0, col / 4, vec4(sums.o[a][e], sums.o[a][e + 2], sums.o[b][f], sums.o[b][f + 2]));
                    }
                }
            }
        }
    }
}

DEFINE_COMBINE_SUBGROUPS
