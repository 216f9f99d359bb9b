// decode_keys: the online softmax of a subgroup over its keys, on any device
// (attention_decode.comp).
//
// A lane holds VEC elements of a key at a time, TEAM lanes hold one, and 4 keys of each team are
// on their way. What the lanes have of the scores of 4 keys is added up so that each lane ends
// with the score of one (gather), once for each row: features and exponentials cost a fourth.

const uint K_LOADS = (HEAD_DIM + TEAM * VEC - 1) / (TEAM * VEC);   // of a lane, for a key
const uint V_LOADS = (VALUE_DIM + TEAM * VEC - 1) / (TEAM * VEC);
const uint STRIPES = SUBGROUPS;
const uint STEPS = 7;  // a subgroup has 2^STEPS lanes at most

// Rows at a time whose O of all subgroups is in shared memory: about 16 KiB, with one at least.
const uint FIT_ROWS = 4096 / (STRIPES * VALUE_DIM);
const uint PASS_ROWS = FIT_ROWS >= ROWS ? ROWS : FIT_ROWS >= 4 ? 4 : FIT_ROWS >= 2 ? 2 : 1;

// Sums are what a subgroup knows of the rows: the maximum m, the same in all lanes, the lane's part
// of l, and its team's part of the lane's columns of O.
struct Sums {
    float m[ROWS], l[ROWS];
    vec4 o[ROWS * V_LOADS * QUADS];
};

uint lane_of_team() { return gl_SubgroupInvocationID % TEAM; }
uint team() { return gl_SubgroupInvocationID / TEAM; }
uint stripe() { return gl_SubgroupID; }

// column returns the first column of load number i of a lane.
uint column(const uint i) { return (i * TEAM + lane_of_team()) * VEC; }

// own_key returns which of four keys of its team a lane has the scores of.
uint own_key() { return lane_of_team() / (TEAM / 4); }

// key_of returns key number j of a team's keys of a tile, or the nearest that some row sees.
uint key_of(const Part part, const uint tile, const uint j) {
    return uint(clamp(int(tile * TILE + j * TEAMS + team()), part.sequence.from, part.end - 1));
}

// gather adds up the scores of four keys over the lanes of a team, each of which has a part of
// all, and returns the score of own_key: in two steps a lane gives half of its sums to another lane, and
// takes the other lane's sums of its own half.
float gather(const vec4 s) {
    const bool upper = (gl_SubgroupInvocationID & TEAM / 2) != 0;
    const vec2 two = (upper ? s.zw : s.xy) + subgroupShuffleXor(upper ? s.xy : s.zw, TEAM / 2);
    const bool odd = (gl_SubgroupInvocationID & TEAM / 4) != 0;
    float one = (odd ? two.y : two.x) + subgroupShuffleXor(odd ? two.x : two.y, TEAM / 4);
    [[unroll]] for (uint step = 0; step < STEPS; step++) {
        if (1u << step < TEAM / 4) {
            one += subgroupShuffleXor(one, 1u << step);
        }
    }
    return one;
}

// over_keys returns the largest x of the lanes that have different keys.
float over_keys(float x) {
    [[unroll]] for (uint step = 0; step < STEPS; step++) {
        if (1u << step >= TEAM / 4 && 1u << step < SUBGROUP_SIZE) {
            x = max(x, subgroupShuffleXor(x, 1u << step));
        }
    }
    return x;
}

// load_row_k returns load number i of a row of K, and load_row_v of V. Lanes beyond the row
// load its start, so that no load is conditional, and take zeros.
Words load_row_k(const uint at, const uint i) {
    const bool has = HEAD_DIM % (TEAM * VEC) == 0 || column(i) < HEAD_DIM;
    const Words x = load_k(at + (has ? column(i) : 0), VEC);
    return has ? x : Words(0);
}

Words load_row_v(const uint at, const uint i) {
    const bool has = VALUE_DIM % (TEAM * VEC) == 0 || column(i) < VALUE_DIM;
    const Words x = load_v(at + (has ? column(i) : 0), VEC);
    return has ? x : Words(0);
}

#include "decode_no_ahead.glsl"

// read_keys sums up the part's keys. Each subgroup takes every STRIPES-th tile.
void read_keys(const Part part, const Ahead ahead, inout Sums sums) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        sums.m[r] = MAX_INIT;
        sums.l[r] = 0.0;
    }
    [[unroll]] for (uint i = 0; i < ROWS * V_LOADS * QUADS; i++) {
        sums.o[i] = vec4(0.0);
    }
    if (part.end <= part.sequence.from) {
        return;
    }
    const uint k_head = p.k_offset + part.kv_head * p.k_stride_h;
    const uint v_head = p.v_offset + part.kv_head * p.v_stride_h;

    Row rows[ROWS];
    vec4 q[ROWS * K_LOADS * QUADS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        rows[r] = row_of(part, r);
        const uint at = q_at(part, r);
        [[unroll]] for (uint i = 0; i < K_LOADS; i++) {
            const bool has = HEAD_DIM % (TEAM * VEC) == 0 || column(i) < HEAD_DIM;
            const uvec4 x = has ? LOAD_QUERY(part, r, at, column(i)) : uvec4(0);
            [[unroll]] for (uint e = 0; e < QUADS; e++) {
                q[(r * K_LOADS + i) * QUADS + e] = quad(x, e) * SCORE_SCALE(part);
            }
        }
    }

    const uint step = STRIPES * apart();
    uint tile = part.first + stripe() * apart();
    uint next_page[LOOKUPS];
    if (PAGE_SIZE > 0 && tile < part.last) {
        [[unroll]] for (uint j = 0; j < LOOKUPS; j++) {
            next_page[j] = look_up(part, key_of(part, tile, j));
        }
    }
    [[dont_unroll]] for (; tile < part.last; tile += step) {
        Words k[4 * K_LOADS], v[4 * V_LOADS];
        uint v_at[4];
        [[unroll]] for (uint j = 0; j < 4; j++) {
            const uint key = key_of(part, tile, j);
            const uint outer = PAGE_SIZE > 0 ? next_page[j % LOOKUPS] : part.cache;
            const uint inner = PAGE_SIZE > 0 ? key % PAGE_SIZE : key;
            const uint k_at = k_head + outer * p.k_stride_b + inner * p.k_stride_s;
            v_at[j] = v_head + outer * p.v_stride_b + inner * p.v_stride_s;
            [[unroll]] for (uint i = 0; i < K_LOADS; i++) {
                k[j * K_LOADS + i] = load_row_k(k_at, i);
            }
        }
        [[unroll]] for (uint j = 0; j < 4; j++) {
            [[unroll]] for (uint i = 0; i < V_LOADS; i++) {
                v[j * V_LOADS + i] = load_row_v(v_at[j], i);
            }
        }
        if (PAGE_SIZE > 0 && tile + step < part.last) {
            [[unroll]] for (uint j = 0; j < LOOKUPS; j++) {
                next_page[j] = look_up(part, key_of(part, tile + step, j));
            }
        }

        vec4 s[ROWS];  // of four keys
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            s[r] = vec4(0.0);
        }
        [[unroll]] for (uint j = 0; j < 4; j++) {
            [[unroll]] for (uint i = 0; i < K_LOADS * QUADS; i++) {
                const vec4 x = WORDS_QUAD(k[j * K_LOADS + i / QUADS], i % QUADS);
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    const vec4 y = q[r * K_LOADS * QUADS + i];
                    s[r][j] = fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, s[r][j]))));
                }
            }
        }
        float own[ROWS];  // of own_key
        bool above = false;
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            own[r] = score(rows[r], part, gather(s[r]), int(tile * TILE + own_key() * TEAMS + team()));
            above = above || own[r] > sums.m[r] + SLACK;
        }
        if (subgroupAny(above)) {
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                const float top = max(sums.m[r], over_keys(own[r]));
                const float alpha = exp2(sums.m[r] - top);
                sums.m[r] = top;
                sums.l[r] *= alpha;
                [[unroll]] for (uint i = 0; i < V_LOADS * QUADS; i++) {
                    sums.o[r * V_LOADS * QUADS + i] *= alpha;
                }
            }
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            own[r] = exp2(own[r] - sums.m[r]);
            sums.l[r] += own[r];
        }
        [[unroll]] for (uint j = 0; j < 4; j++) {
            vec4 x[V_LOADS * QUADS];
            [[unroll]] for (uint i = 0; i < V_LOADS * QUADS; i++) {
                x[i] = WORDS_QUAD(v[j * V_LOADS + i / QUADS], i % QUADS);
            }
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                const float w = subgroupShuffle(own[r], team() * TEAM + j * (TEAM / 4));
                [[unroll]] for (uint i = 0; i < V_LOADS * QUADS; i++) {
                    sums.o[r * V_LOADS * QUADS + i] = fma(vec4(w), x[i], sums.o[r * V_LOADS * QUADS + i]);
                }
            }
        }
    }
}

#include "decode_combine.glsl"

// share_rows adds up the lanes' parts, and puts m and l of each row into shared memory.
void share_rows(inout Sums sums) {
    [[unroll]] for (uint step = 0; step < STEPS; step++) {
        const uint h = 1u << step;
        if (h >= TEAM / 4 && h < SUBGROUP_SIZE) {
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                sums.l[r] += subgroupShuffleXor(sums.l[r], h);
            }
        }
        if (h >= TEAM && h < SUBGROUP_SIZE) {
            [[unroll]] for (uint i = 0; i < ROWS * V_LOADS * QUADS; i++) {
                sums.o[i] += subgroupShuffleXor(sums.o[i], h);
            }
        }
    }
    if (gl_SubgroupInvocationID == 0) {
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            row_sums[stripe() * ROWS + r] = vec2(sums.m[r], sums.l[r]);
        }
    }
}

// put_rows puts O of the rows r0 to r0+PASS_ROWS-1 into shared memory.
void put_rows(const Sums sums, const uint r0) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        if (r - r0 < PASS_ROWS && gl_SubgroupInvocationID < TEAM) {
            [[unroll]] for (uint i = 0; i < V_LOADS; i++) {
                if (VALUE_DIM % (TEAM * VEC) == 0 || column(i) < VALUE_DIM) {
                    [[unroll]] for (uint e = 0; e < QUADS; e++) {
                        put_quad(r - r0, column(i) / 4 + e, sums.o[(r * V_LOADS + i) * QUADS + e]);
                    }
                }
            }
        }
    }
}

DEFINE_COMBINE_SUBGROUPS
