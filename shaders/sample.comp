// sample: one token of each row of logits, drawn from those that filters keep.
//
//     x[v]   = logits[v] * penalty if that is negative, else / penalty    where SEEN and v was seen, else logits[v]
//     w[v]   = exp((x[v] - max x) / temperature)
//     kept   = v with x[v] >= the top_k-th largest x                      with TOP_K
//              of these with sum of w over larger x < top_p * sum of w    with TOP_P
//              of these with x[v] >= max x + least                        where least = temperature * log(min_p)
//     token  = the kept v with the largest w[v] / e[v], e exponentially distributed: v with probability w[v] / sum of w
//
// Without DRAW the token is the v with the largest x. The first of equals wins. NaN and -inf are never kept; a row of
// nothing else has the token -1. Of +inf all others have w = 0.
//
//     logits  (rows, vocabulary)     FORMAT, row stride, last axis contiguous
//     seen    (rows, vocabulary/32)  bits of the tokens of a row, the lowest first; the kernel sets the bit of the token
//     state   (rows, 4)              the key of random numbers, a stream, and how many were drawn; the kernel counts
//     tokens  (rows)                 i32
//
// A workgroup has a row. A threshold is a search over keys, which are logits as integers of the same order: each pass
// adds the numbers, or the weights, of the elements above three keys. It begins with the largest element of each
// invocation: what these reach, all do. Then few elements are left above it, which their invocations hold, and
// else passes go over the row. Both add in the same order: the same bits on every run.
//
// Dispatch: any number of workgroups; each takes rows in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;  // a power of two
layout(constant_id = 1) const uint VEC = 8;
layout(constant_id = 2) const bool ALIGNED = true;
layout(constant_id = 3) const uint FORMAT = 0;
layout(constant_id = 4) const bool DRAW = true;
layout(constant_id = 5) const bool TOP_K = true;
layout(constant_id = 6) const bool TOP_P = true;
layout(constant_id = 7) const bool SEEN = true;
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint rows;
    uint vocabulary;
    float inverse_temperature;
    float top_k;
    float top_p;
    float least;
    float penalty;
    float inverse_penalty;
    ROW_STRIDE(logits)  // elements, like all that follow
    ROW_STRIDE(seen)
    ROW_STRIDE(state)
    uint tokens_offset;
} p;

#include "lib/any16.glsl"
#include "lib/philox.glsl"

ANY16(0, readonly, Logits, logits)
LOAD_ANY16(logits, FORMAT)
layout(binding = 1, scalar) buffer Seen { uint seen[]; };
layout(binding = 2, scalar) buffer State { uint state[]; };
layout(binding = 3, scalar) writeonly buffer Tokens { int tokens[]; };

const bool SUBGROUP_TEAM = false;
shared vec3 partial[WORKGROUP_SIZE];

#include "lib/reduce.glsl"

#include "lib/sample_keys.glsl"

// add adds an element to the sums of those with keys from three on.
void add(inout vec3 sums, const Row row, const uint key, const uvec3 from, const bool weights) {
    if (key >= from.x) {
        sums += mix(vec3(0.0), vec3(weights ? weight(row, key) : 1.0), greaterThanEqual(uvec3(key), from));
    }
}

// sums_from returns the numbers, or the weights, of the elements with keys from three on, the first of which is the
// least. With few they are the largest elements of the invocations alone. Every invocation calls it.
vec3 sums_from(const Row row, const bool few, const uvec3 from, const bool weights) {
    vec3 sums = vec3(0.0);
    if (few) {
        add(sums, row, row.own, from, weights);
    } else if (row.held) {
        [[unroll]] for (uint i = 0; i < HELD; i++) {
            add(sums, row, row.keys[i], from, weights);
        }
    } else if (from.x != ABOVE_ALL) {
        for (uint c = gl_LocalInvocationIndex * VEC; c < p.vocabulary; c += WORKGROUP_SIZE * VEC) {
            uvec4 keys[2];
            load_keys(row, c, keys);
            if (max(largest(keys[0]), largest(keys[1])) >= from.x) {
                [[unroll]] for (uint e = 0; e < VEC; e++) {
                    add(sums, row, keys[e / 4][e % 4], from, weights);
                }
            }
        }
    }
    return team_sum(sums);
}

const uint PASSES = 16;  // that find one of 2^32 keys

// hold keeps the elements with keys from low on, if each invocation has room for its own. Every invocation calls it.
void hold(inout Row row, const uint low) {
    uint n = 0;
    if (!row.held) {
        [[unroll]] for (uint i = 0; i < HELD; i++) {
            row.keys[i] = 0;
        }
        for (uint c = gl_LocalInvocationIndex * VEC; c < p.vocabulary; c += WORKGROUP_SIZE * VEC) {
            uvec4 keys[2];
            load_keys(row, c, keys);
            if (max(largest(keys[0]), largest(keys[1])) < low) {
                continue;
            }
            [[unroll]] for (uint e = 0; e < VEC; e++) {
                const uint key = keys[e / 4][e % 4];
                [[unroll]] for (uint i = 0; i < HELD; i++) {
                    if (key >= low && i == n) {
                        row.keys[i] = key;
                        row.columns[i] = c + e;
                    }
                }
                n += key >= low ? 1 : 0;
            }
        }
    }
    row.held = team_sum(n > HELD ? 1.0 : 0.0) == 0.0;
}

// filtered returns the largest key from low on such that the elements from it on have at least top_k numbers, or a
// part top_p of the weights of those from low on. It is among n keys, of 2^32 at first, and a quarter of these after each
// pass. Every invocation calls it.
uint filtered(inout Row row, uint low, const bool weights) {
    float target = 0.0;
    uint n = row.most >= low ? row.most - low + 1 : 0;
    [[dont_unroll]] for (uint pass = 0; pass <= 2 * PASSES; pass++) {
        if (pass == PASSES + 1) {
            hold(row, low);
            n = row.most >= low ? row.most - low + 1 : 0;
        }
        const uint step = (n + 3) / 4;
        uvec3 from = n > 1 ? low + step * uvec3(1, 2, 3) : uvec3(ABOVE_ALL);
        if (pass == 0) {
            from = uvec3(weights ? low : ABOVE_ALL, ABOVE_ALL, ABOVE_ALL);
        }
        const vec3 sums = sums_from(row, pass - 1 < PASSES, from, weights);
        if (pass == 0) {
            target = weights ? p.top_p * sums.x : p.top_k;
        } else if (n > 1) {
            const uint steps = uint(dot(vec3(greaterThanEqual(sums, vec3(target))), vec3(1.0)));
            low += steps * step;
            n = min(step, n - steps * step);
        }
    }
    return low;
}

// exponential returns a number of the exponential distribution, -log(1 - u) with u = (word + 1/2) / 2^32.
float exponential(const uint word) {
    const float u = float(word) * 2.3283064365386963e-10 + 1.1641532182693481e-10;
    if (u < 0.125) {  // where 1 - u would lose bits: the series, right to 2^-23
        return u * (1.0 + u * (1.0 / 2.0 + u * (1.0 / 3.0 + u * (1.0 / 4.0 + u * (1.0 / 5.0 + u * (1.0 / 6.0 + u * (1.0 / 7.0)))))));
    }
    return -log(float(~word) * 2.3283064365386963e-10 + 1.1641532182693481e-10);
}

// draw returns the column of the element from low on with the largest w / e. Every invocation calls it.
uint draw(const Row row, const uint low, const uint number) {
    const uint at = p.state_offset + number * p.state_stride;
    const uvec2 key = uvec2(state[at], state[at + 1]);
    const uvec3 counter = uvec3(state[at + 2], state[at + 3], 0);
    uvec2 best = uvec2(0, ABOVE_ALL);
    if (row.held) {
        [[dont_unroll]] for (uint i = 0; i < HELD; i++) {
            uint held = 0;
            uint column = 0;
            [[unroll]] for (uint j = 0; j < HELD; j++) {  // no index that is not constant: arrays stay in registers
                held = j == i ? row.keys[j] : held;
                column = j == i ? row.columns[j] : column;
            }
            if (held >= low) {
                const uvec4 words = philox(uvec4(column / 4, counter), key);
                const uvec2 other = uvec2(floatBitsToUint(weight(row, held) / exponential(words[column % 4])), column);
                best = before(other, best) ? other : best;
            }
        }
    }
    for (uint c = gl_LocalInvocationIndex * VEC; c < p.vocabulary && !row.held; c += WORKGROUP_SIZE * VEC) {
        uvec4 keys[2];
        load_keys(row, c, keys);
        [[unroll]] for (uint q = 0; q < QUADS; q++) {
            if (largest(keys[q]) < low) {
                continue;
            }
            const uvec4 words = philox(uvec4(c / 4 + q, counter), key);
            [[unroll]] for (uint e = 0; e < 4; e++) {
                if (keys[q][e] >= low) {
                    const uvec2 other = uvec2(floatBitsToUint(weight(row, keys[q][e]) / exponential(words[e])), c + q * 4 + e);
                    best = before(other, best) ? other : best;
                }
            }
        }
    }
    return first(best).y;
}

void main() {
    for (uint number = gl_WorkGroupID.x; number < p.rows; number += gl_NumWorkGroups.x) {
        Row row;
        row.logits_at = p.logits_offset + number * p.logits_stride;
        row.seen_at = p.seen_offset + number * p.seen_stride;
        row.held = false;
        const uvec2 own = own_first(row);
        const uvec2 top = first(own);
        row.own = own.x;
        row.most = top.x;
        uint token = 0;
        if (DRAW) {
            uint low = 1;
            [[dont_unroll]] for (uint by = TOP_K ? 0 : 1; by < (TOP_P ? 2 : 1); by++) {
                low = filtered(row, low, by == 1);
            }
            low = max(low, key_of(logit_of(row.most) + p.least));
            token = draw(row, low, number);
        }
        if (gl_LocalInvocationIndex == 0) {
            if (!DRAW) {
                token = column_of(row, top.x, min(top.y, p.vocabulary - 1) / VEC * VEC);
            }
            tokens[p.tokens_offset + number] = row.most > 0 ? int(token) : -1;
            if (DRAW) {
                state[p.state_offset + number * p.state_stride + 3] += 1;
            }
            if (SEEN && row.most > 0) {
                seen[row.seen_at + token / 32] |= 1u << token % 32;
            }
        }
    }
}
