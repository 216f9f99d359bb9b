// decode_matrix8: the online softmax of a subgroup over its keys in 8 bits, on matrices of float16
// (attention_decode.comp; lib/decode_operands.glsl has the operands).
//
//     S = Q * Kᵀ   16 rows by once or twice 16 keys, a tile
//     O = P * V    16 rows by columns
//
// It is lib/decode_matrix.glsl but for operands, and for tiles that may have twice as many keys, as
// these have half the bytes.
#ifndef LIB_DECODE_MATRIX8_GLSL
#define LIB_DECODE_MATRIX8_GLSL

#include "decode_no_ahead.glsl"
#include "decode_operands.glsl"

// The scores of a lane: of each of its rows EACH, of keys value_key(0), value_key(1), ... of a tile.
const uint EACH = HALVES * 4;

// MATRIX_OF(i) is which matrix of scores, or of weights, has score i of a lane, and ELEMENT_OF(i) which
// of the lane's elements of it that is.
#define MATRIX_OF(i) (i / (2 * EACH) * HALVES + i % EACH / 4)
#define ELEMENT_OF(i) (i / EACH % 2 * 4 + i % 4)

// read_keys sums up the part's keys. Each subgroup takes every STRIPES-th tile.
void read_keys(const Part part, const Ahead ahead, inout Sums sums) {
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
    const uint end = part.last;
    const uint step = STRIPES * apart();
    uint tile = part.first + stripe() * apart();
    Keys k;
    Values v;
    uvec4 next_pages = uvec4(part.cache);
    if (tile < end) {
        const uvec4 pages = pages_of(part, tile);
        load_keys(part, tile, pages, k);
        load_values(part, tile, pages, v);
        if (PAGE_SIZE > 0 && tile + step < end) {
            next_pages = pages_of(part, tile + step);
        }
    }
    share_q(part);
    Row rows[ROW_TILES * 2];
    float scale[ROW_TILES * 2];
    [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
        rows[i] = row_of(part, i * 8 + lane_g());
        scale[i] = row_scale(i * 8 + lane_g()) * SCORE_SCALE(part);
    }
    const ivec2 whole = visible_to_all(part);
    [[dont_unroll]] for (; tile < end; tile += step) {
        const uint next = tile + step;
        const uvec4 pages = next_pages;
        if (PAGE_SIZE > 0 && next + step < end) {
            next_pages = pages_of(part, next + step);
        }
        MatC s[ROW_TILES * HALVES];
        [[unroll]] for (uint r = 0; r < ROW_TILES * HALVES; r++) {
            s[r] = MatC(0.0);
        }
        [[unroll]] for (uint n = 0; n < K_LOADS; n++) {
            [[unroll]] for (uint e = 0; e < 2; e++) {
                [[unroll]] for (uint h = 0; h < HALVES; h++) {
                    MatB b;
                    [[unroll]] for (uint i = 0; i < 2; i++) {
                        const uint word = k.at[(2 * h + i) * K_LOADS + n][e];
                        const uvec2 x = operands(word, key_scale(k, 2 * h + i, n));
                        set_right(b, 2 * i, x.x);
                        set_right(b, 2 * i + 1, x.y);
                    }
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        const uint at = (r * K_LOADS + n) * 64 + gl_SubgroupInvocationID;
                        const uvec4 x = q_rows[at];
                        const uvec4 y = q_rows[at + 32];
                        MatA a;
                        set_left(a, 0, x[2 * e]);
                        set_left(a, 1, x[2 * e + 1]);
                        set_left(a, 2, y[2 * e]);
                        set_left(a, 3, y[2 * e + 1]);
                        s[HALVES * r + h] = coopMatMulAdd(a, b, s[HALVES * r + h]);
                    }
                }
            }
        }
        if (next < end) {
            load_keys(part, next, pages, k);
        }

        float x[ROW_TILES * 2 * EACH];  // of rows g and g + 8 of each matrix
        bool above = false;
        [[unroll]] for (uint i = 0; i < ROW_TILES * 2 * EACH; i++) {
            x[i] = s[MATRIX_OF(i)][ELEMENT_OF(i)] * scale[i / EACH];
        }
        if (int(tile * TILE) >= whole.x && int(tile * TILE + TILE) <= whole.y) {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 2 * EACH; i++) {
                x[i] = logit(rows[i / EACH], part, x[i], int(tile * TILE + value_key(i % EACH)));
            }
        } else {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 2 * EACH; i++) {
                x[i] = score(rows[i / EACH], part, x[i], int(tile * TILE + value_key(i % EACH)));
            }
        }
        float top[ROW_TILES * 2];
        [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
            top[i] = x[EACH * i];
            [[unroll]] for (uint j = 1; j < EACH; j++) {
                top[i] = max(top[i], x[EACH * i + j]);
            }
            above = above || top[i] > sums.m[i] + SLACK;
        }
        if (subgroupAny(above)) {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
                top[i] = max(top[i], subgroupShuffleXor(top[i], 1));
                top[i] = max(sums.m[i], max(top[i], subgroupShuffleXor(top[i], 2)));
                const float alpha = exp2(sums.m[i] - top[i]);
                sums.m[i] = top[i];
                sums.l[i] *= alpha;
                [[unroll]] for (uint j = 0; j < V_LOADS * 4; j++) {
                    [[unroll]] for (uint e = 0; e < 4; e++) {
                        sums.o[i / 2 * V_LOADS * 4 + j][i % 2 * 4 + e] *= alpha;
                    }
                }
            }
        }
        MatA w[ROW_TILES * HALVES];
        [[unroll]] for (uint i = 0; i < ROW_TILES * 2 * EACH; i += 2) {
            const vec2 y = exp2(vec2(x[i], x[i + 1]) - sums.m[i / EACH]);
            sums.l[i / EACH] += y.x + y.y;
            set_left(w[MATRIX_OF(i)], ELEMENT_OF(i) / 2, packFloat2x16(f16vec2(y)));
        }
        [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
            uint scales[EIGHTS];
            [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
                scales[i] = value_scales(v, 2 * i, n);
            }
            [[unroll]] for (uint a = 0; a < 4; a++) {
                [[unroll]] for (uint h = 0; h < HALVES; h++) {
                    MatB b;
                    [[unroll]] for (uint i = 0; i < 2; i++) {
                        const uint first = v.at[(4 * h + 2 * i) * V_LOADS + n][a / 2];
                        const uint second = v.at[(4 * h + 2 * i + 1) * V_LOADS + n][a / 2];
                        const uint two = low_or_high(first, second, a % 2 == 1);
                        const uvec2 x = operands(two, scales[2 * h + i]);
                        set_right(b, i, x.x);
                        set_right(b, 2 + i, x.y);
                    }
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        const uint at = r * V_LOADS * 4 + 4 * n + a;
                        sums.o[at] = coopMatMulAdd(w[HALVES * r + h], b, sums.o[at]);
                    }
                }
            }
        }
        if (next < end) {
            load_values(part, next, pages, v);
        }
    }
}

#include "decode_matrix_rows.glsl"

#endif
