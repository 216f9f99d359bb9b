// Long: the loads of a phase are variables of main, which leave before the phases in front of it.
// decoder: a layer of a decoder for one token, of which all workgroups run at once.
//
//     a     = x / rms(x) * norm_a                            rms(v) = sqrt(mean(v^2) + eps)
//     q,k,v = qkv . a + bias                                 q and k rotated by the angles of place n = seq_lens[0]
//     o     = softmax(q . K^T / sqrt(HEAD_DIM)) . V          keys 0 to n; of key n K and V are k and v, which the cache takes
//     x     = x + out . o
//     h     = silu(gate . b) * (up . b)                      b = x / rms(x) * norm_b
//     x     = x + down . h                                   h is rounded to ELEM
//
//     x, y        (width)                        ELEM; the first layer reads x, the last writes y
//     cos, sin    (keys, HEAD_DIM / 2)           f32
//     seq_lens    (1)                            i32
//     norm_a, norm_b, bias                       f32
//     qkv         (QKV, WIDTH)                   ELEM: HEADS heads of q, KV_HEADS of k, as many of v; like all weights at
//     out         (WIDTH, HEADS * HEAD_DIM)      multiples of 16 bytes
//     gate_up     (2 * HIDDEN, WIDTH)            rows of up behind all of gate
//     down        (WIDTH, HIDDEN)
//     k, v        (KV_HEADS, keys, HEAD_DIM)     strides of heads and keys
//     words       vectors between phases, of all layers: EMPTY before the first one
//
// A number between phases is a word, a float. Who needs it reads it until it is not EMPTY: no barrier of the grid is
// needed, and a word orders nothing but itself. Weights and old keys do not wait for words: the loads of a phase leave
// before the words of earlier phases are there. Rows of weights are divided between workgroups, a row belongs to a
// team. Ranges of keys and key heads are divided, too; everyone combines the ranges. Sums have a fixed order.
//
// Words that do not come in LIMIT reads stay EMPTY, which is a NaN; so is y if the cache has no place for the token.
//
// Dispatch: (GROUPS). All of them must be able to run at once.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_memory_scope_semantics : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 512;
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint GROUPS = 132;
layout(constant_id = 3) const uint WIDTH = 576;      // a multiple of 8, like HIDDEN
layout(constant_id = 4) const uint HIDDEN = 1536;
layout(constant_id = 5) const uint HEADS = 9;
layout(constant_id = 6) const uint KV_HEADS = 3;
layout(constant_id = 7) const uint HEAD_DIM = 64;    // a multiple of 64
layout(constant_id = 8) const uint SPLITS = 8;       // ranges of keys
layout(constant_id = 9) const uint TEAM = 32;        // invocations that have a row of weights, a power of two up to SUBGROUP
layout(constant_id = 10) const uint LOADS = 8;       // vectors of weights in flight, at most
layout(constant_id = 11) const uint KEYS = 2;        // of a team of 8, in flight
layout(constant_id = 12) const uint AHEAD = 2;       // waits between the first loads of a phase and their use
layout(constant_id = 13) const uint COPIES = 4;      // of each word, up to TEAM: a line of memory has fewer readers
layout(constant_id = 14) const bool BIAS = false;
layout(constant_id = 15) const uint LIMIT = 65536;   // reads of a word
layout(local_size_x_id = 0) in;

const uint NONE = 0xffffffffu;

// Where a weight and a cache lie, in vectors of 16 bytes.
struct Weight {
    uint offset, stride;
};

struct Cache {
    uint offset, head, key;
};

layout(push_constant, scalar) uniform Params {
    uint keys;
    float eps;
    uint words;   // of this layer
    uint before;  // words of the layer before; NONE: x is in its tensor
    uint last;    // 1: y is written
    uint x_offset;
    uint y_offset;
    uint cos_offset;
    uint sin_offset;
    uint seq_lens_offset;
    uint norm_a_offset;
    uint norm_b_offset;
    uint bias_offset;
    Weight qkv;
    Weight out_;
    Weight gate_up;
    Weight down;
    Cache k;
    Cache v;
} p;

#include "lib/vec16.glsl"

layout(binding = 0, scalar) readonly buffer X { uint16_t x16[]; };
layout(binding = 1, scalar) readonly buffer Cos { float cos_table[]; };
layout(binding = 2, scalar) readonly buffer Sin { float sin_table[]; };
layout(binding = 3, scalar) readonly buffer SeqLens { int seq_lens[]; };
layout(binding = 4, scalar) readonly buffer NormA { float norm_a[]; };
layout(binding = 5, scalar) readonly buffer Qkv { uvec4 w_qkv[]; };
layout(binding = 6, scalar) readonly buffer Bias { float bias[]; };
layout(binding = 7, scalar) readonly buffer Out { uvec4 w_out[]; };
layout(binding = 8, scalar) readonly buffer NormB { float norm_b[]; };
layout(binding = 9, scalar) readonly buffer GateUp { uvec4 w_gate_up[]; };
layout(binding = 10, scalar) readonly buffer Down { uvec4 w_down[]; };
layout(binding = 11, scalar) buffer K { uvec4 k16[]; };
layout(binding = 12, scalar) buffer V { uint v2[]; };
layout(binding = 12, scalar) buffer V4 { uvec2 v4[]; };
layout(binding = 13, scalar) buffer Words { uint words[]; };
layout(binding = 14, scalar) writeonly buffer Y { uint16_t y16[]; };

const uint SUBGROUPS = WORKGROUP_SIZE / SUBGROUP;
const uint ROW_TEAMS = WORKGROUP_SIZE / TEAM;
const uint TEAMS = WORKGROUP_SIZE / 8;       // 8 invocations that have a key
const uint GROUP = HEADS / KV_HEADS;         // heads that share a key head
const uint VECS = HEAD_DIM / 64;             // vectors of a row of K that an invocation has
const uint WIDE_TEAMS = WORKGROUP_SIZE / 32; // 32 invocations that have values
const uint COLUMNS = HEAD_DIM / 32;          // of V that an invocation has
const uint ROUND = KEYS * TEAMS;             // keys that are loaded at once
const uint WEIGHTS = (GROUP + 3) / 4;        // vec4 of a key's weights
const float LEAST = -1e30;                   // less than all scores, and not an infinity, whose difference to itself is a NaN
const uint ATTENDED = HEADS * HEAD_DIM;
const uint QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
const uint ROTATED = HEAD_DIM / 2;

// Words of a layer.
const uint EMPTY = 0xffffffffu;
const uint AT_QKV = 0;
const uint AT_RANGES = AT_QKV + QKV;                     // (HEADS, SPLITS, maximum and sum)
const uint AT_PARTS = AT_RANGES + HEADS * SPLITS * 2;    // (HEADS, SPLITS, HEAD_DIM)
const uint AT_MIDDLE = AT_PARTS + HEADS * SPLITS * HEAD_DIM;
const uint AT_H = AT_MIDDLE + WIDTH;
const uint AT_X = AT_H + HIDDEN;                         // of the next layer
const uint WORDS = AT_X + WIDTH;                         // of a copy

#define DIV_UP(a, b) (((a) + (b) - 1) / (b))

// The vector that weights multiply, in floats or, of HIDDEN elements, in ELEM; and sums of teams.
const uint SUMS = WIDE_TEAMS * GROUP * HEAD_DIM / 4;
const uint WIDEST = WIDTH > ATTENDED ? WIDTH / 4 : ATTENDED / 4;
const uint FLOATS = WIDEST > HIDDEN / 8 ? WIDEST : HIDDEN / 8;
shared uvec4 vectors[FLOATS > SUMS ? FLOATS : SUMS];
shared vec4 rotated[(GROUP + 2) * HEAD_DIM / 4];  // queries, and the new key and its value
shared vec4 weights[ROUND * WEIGHTS];
shared float own[DIV_UP(WIDTH, GROUPS)];     // x of this workgroup's rows
shared float squares[SUBGROUPS];
shared float tops[SUBGROUPS * GROUP];
shared float next[GROUP];                    // maxima of all keys so far, with this round
shared float so_far[GROUP];                  // and without
shared float totals[WIDE_TEAMS * GROUP];
shared float ranges[HEADS * SPLITS * 2];     // maximum and sum
shared float shares[HEADS * SPLITS];         // of a range in the sum of all


#define tid gl_LocalInvocationIndex
#define lane (tid % TEAM)
#define subgroup (tid / SUBGROUP)

bool late = false;  // a word did not come: this invocation waits no longer

void put_word(const uint i, const uint copy, const float v) {
    const uint bits = floatBitsToUint(v);
    atomicStore(words[p.words + copy * WORDS + i], bits == EMPTY ? 0x7fc00000u : bits, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
}

uint word(const uint i) {
    return atomicLoad(words[gl_WorkGroupID.x % COPIES * WORDS + i], gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
}

// AWAIT reads words number `index` of e < n, of which there are those that are valid, until all are there. A macro, as
// arrays would be copied.
#define AWAIT(got, n, valid, index)                         \
    for (uint reads = 0;; reads++) {                        \
        bool all = true;                                    \
        [[unroll]] for (uint e = 0; e < n; e++) {           \
            got[e] = 0;                                     \
            if (valid) {                                    \
                got[e] = word(index);                       \
            }                                               \
            all = all && got[e] != EMPTY;                   \
        }                                                   \
        if (all || late) {                                  \
            break;                                          \
        }                                                   \
        late = reads >= LIMIT;                              \
    }

#include "lib/decoder_products.glsl"

const uint EACH_WIDTH = DIV_UP(WIDTH, WORKGROUP_SIZE);
const uint EACH_HIDDEN = DIV_UP(HIDDEN, WORKGROUP_SIZE);
const uint EACH_ATTENDED = DIV_UP(ATTENDED, WORKGROUP_SIZE);
const uint EACH_RANGE = DIV_UP(HEADS * SPLITS * 2, WORKGROUP_SIZE);

// part_of returns the word of element i of range s.
uint part_of(const uint i, const uint s) { return AT_PARTS + (i / HEAD_DIM * SPLITS + s) * HEAD_DIM + i % HEAD_DIM; }

void put(const uint i, const float x) { vectors[i / 4][i % 4] = floatBitsToUint(x); }

// rstd returns the factor of a vector whose squares invocations have added up. It orders what they have put into
// shared memory before what they read.
float rstd(const float mine) {
    const float sum = subgroupAdd(mine);
    if (tid % SUBGROUP == 0) {
        squares[subgroup] = sum;
    }
    barrier();  // vectors, squares and own are written before they are read
    float all = 0.0;
    for (uint i = tid % SUBGROUP; i < SUBGROUPS; i += SUBGROUP) {
        all += squares[i];
    }
    return inversesqrt(subgroupAdd(all) / float(WIDTH) + p.eps);
}

void main() {
    const uint place = uint(seq_lens[p.seq_lens_offset]);
    const bool room = place < p.keys;
    const uint n_keys = min(place, p.keys - 1) + 1;
    uvec4 w_1[CHUNK(WIDTH, 1)];
    uvec4 w_3[CHUNK(ATTENDED, 1)];
    uvec4 w_4[CHUNK(WIDTH, 2)];
    uvec4 w_5[CHUNK(HIDDEN, 1)];
    uvec4 k_now[KEYS * VECS];
    uvec2 v_now[KEYS * 4];
#define START_1 START(w_1, w_qkv, p.qkv, QKV, WIDTH, 1)
#define START_2 if (gl_WorkGroupID.x < KV_HEADS * SPLITS) { LOAD_KEYS(range_of(gl_WorkGroupID.x, n_keys), gl_WorkGroupID.x / SPLITS, range_of(gl_WorkGroupID.x, n_keys).x) }
#define START_3 START(w_3, w_out, p.out_, WIDTH, ATTENDED, 1)
#define START_4 START(w_4, w_gate_up, p.gate_up, HIDDEN, WIDTH, 2)
#define START_5 START(w_5, w_down, p.down, WIDTH, HIDDEN, 1)
    if (AHEAD >= 1) {
        START_1
    }
    if (AHEAD >= 2) {
        START_2
    }
    if (AHEAD >= 3) {
        START_3
    }
    float weights_a[EACH_WIDTH];
    float weights_b[EACH_WIDTH];
    [[unroll]] for (uint e = 0; e < EACH_WIDTH; e++) {
        const uint i = min(e * WORKGROUP_SIZE + tid, WIDTH - 1);
        weights_a[e] = norm_a[p.norm_a_offset + i];
        weights_b[e] = norm_b[p.norm_b_offset + i];
    }

    // 1: q, k and v.
    float factor;
    {
        uint got[EACH_WIDTH];
        if (p.before == NONE) {
            [[unroll]] for (uint e = 0; e < EACH_WIDTH; e++) {
                got[e] = floatBitsToUint(WIDEN(x16[p.x_offset + min(e * WORKGROUP_SIZE + tid, WIDTH - 1)]));
            }
        } else {
            AWAIT(got, EACH_WIDTH, e * WORKGROUP_SIZE + tid < WIDTH, p.before + AT_X + e * WORKGROUP_SIZE + tid)
        }
        float mine = 0.0;
        [[unroll]] for (uint e = 0; e < EACH_WIDTH; e++) {
            const uint i = e * WORKGROUP_SIZE + tid;
            if (i < WIDTH) {
                const float x = uintBitsToFloat(got[e]);
                mine += x * x;
                put(i, x * weights_a[e]);
                if (i >= first_row(WIDTH) && i < end_row(WIDTH)) {
                    own[i - first_row(WIDTH)] = x;
                }
            }
        }
        factor = rstd(mine);
    }
    if (AHEAD == 0) {
        START_1
    }
    PRODUCTS(w_1, w_qkv, p.qkv, QKV, WIDTH, 1, false, put_word(AT_QKV + row, lane, BIAS ? sums[0] * factor + bias[p.bias_offset + row] : sums[0] * factor);)

    // 2: attention to ranges of keys.
    if (AHEAD == 1) {
        START_2
    }
    if (AHEAD == 2) {
        START_3
    }
    if (AHEAD == 3) {
        START_4
    }
    [[dont_unroll]] for (uint unit = gl_WorkGroupID.x; unit < KV_HEADS * SPLITS; unit += GROUPS) {
#include "lib/decoder_attend.glsl"
    }

    // 3: the ranges together, and the first sum.
    if (AHEAD == 1) {
        START_3
    }
    if (AHEAD == 2) {
        START_4
    }
    if (AHEAD == 3) {
        START_5
    }
    barrier();  // vectors are read before they are written
    {
        uint got[EACH_RANGE];
        AWAIT(got, EACH_RANGE, e * WORKGROUP_SIZE + tid < HEADS * SPLITS * 2, p.words + AT_RANGES + e * WORKGROUP_SIZE + tid)
        [[unroll]] for (uint e = 0; e < EACH_RANGE; e++) {
            if (e * WORKGROUP_SIZE + tid < HEADS * SPLITS * 2) {
                ranges[e * WORKGROUP_SIZE + tid] = uintBitsToFloat(got[e]);
            }
        }
        barrier();  // ranges are written before they are read
        for (uint i = tid; i < HEADS * SPLITS; i += WORKGROUP_SIZE) {
            const uint first = i / SPLITS * SPLITS * 2;
            float top = LEAST;
            [[unroll]] for (uint s = 0; s < SPLITS; s++) {
                top = max(top, ranges[first + s * 2]);
            }
            float sum = 0.0;
            [[unroll]] for (uint s = 0; s < SPLITS; s++) {
                sum += exp2(ranges[first + s * 2] - top) * ranges[first + s * 2 + 1];
            }
            shares[i] = exp2(ranges[i * 2] - top) / sum;
        }
        uint parts[EACH_ATTENDED * SPLITS];
        AWAIT(parts, EACH_ATTENDED * SPLITS, e / SPLITS * WORKGROUP_SIZE + tid < ATTENDED, p.words + part_of(e / SPLITS * WORKGROUP_SIZE + tid, e % SPLITS))
        barrier();  // shares are written before they are read
        [[unroll]] for (uint e = 0; e < EACH_ATTENDED; e++) {
            const uint i = e * WORKGROUP_SIZE + tid;
            if (i < ATTENDED) {
                float o = 0.0;
                [[unroll]] for (uint s = 0; s < SPLITS; s++) {
                    o += shares[i / HEAD_DIM * SPLITS + s] * uintBitsToFloat(parts[e * SPLITS + s]);
                }
                put(i, o);
            }
        }
        barrier();  // vectors are written before they are read
    }
    if (AHEAD == 0) {
        START_3
    }
    PRODUCTS(w_3, w_out, p.out_, WIDTH, ATTENDED, 1, false,
        const float x = own[row - first_row(WIDTH)] + sums[0];
        if (lane == 0) {
            own[row - first_row(WIDTH)] = x;
        }
        put_word(AT_MIDDLE + row, lane, x);)

    // 4: gate and up.
    if (AHEAD == 1) {
        START_4
    }
    if (AHEAD == 2) {
        START_5
    }
    barrier();  // vectors are read before they are written
    {
        uint got[EACH_WIDTH];
        AWAIT(got, EACH_WIDTH, e * WORKGROUP_SIZE + tid < WIDTH, p.words + AT_MIDDLE + e * WORKGROUP_SIZE + tid)
        float mine = 0.0;
        [[unroll]] for (uint e = 0; e < EACH_WIDTH; e++) {
            const uint i = e * WORKGROUP_SIZE + tid;
            if (i < WIDTH) {
                const float x = uintBitsToFloat(got[e]);
                mine += x * x;
                put(i, x * weights_b[e]);
            }
        }
        factor = rstd(mine);
    }
    if (AHEAD == 0) {
        START_4
    }
    PRODUCTS(w_4, w_gate_up, p.gate_up, HIDDEN, WIDTH, 2, false,
        const float gate = sums[0] * factor;
        put_word(AT_H + row, lane, gate / (1.0 + exp(-gate)) * sums[1] * factor);)

    // 5: down, and the second sum.
    if (AHEAD == 1) {
        START_5
    }
    barrier();  // vectors are read before they are written
    {
        uint got[EACH_HIDDEN];
        AWAIT(got, EACH_HIDDEN, e * WORKGROUP_SIZE + tid < HIDDEN, p.words + AT_H + e * WORKGROUP_SIZE + tid)
        [[unroll]] for (uint e = 0; e < EACH_HIDDEN; e++) {
            const uint i = e * WORKGROUP_SIZE + tid;
            const float next = subgroupShuffleXor(uintBitsToFloat(got[e]), 1);
            if (i < HIDDEN && i % 2 == 0) {
                vectors[i / 8][i / 2 % 4] = pack2(uintBitsToFloat(got[e]), next);
            }
        }
        barrier();  // vectors are written before they are read
    }
    if (AHEAD == 0) {
        START_5
    }
    PRODUCTS(w_5, w_down, p.down, WIDTH, HIDDEN, 1, true,
        float x = own[row - first_row(WIDTH)] + sums[0];
        if (!room) {
            x = uintBitsToFloat(0x7fc00000u);
        }
        put_word(AT_X + row, lane, x);
        if (p.last != 0 && lane == 0) {
            y16[p.y_offset + row] = NARROW(x);
        })
}
