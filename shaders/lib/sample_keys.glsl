// sample_keys: logits as keys, the elements that invocations hold, and the first of a workgroup.
//
// The includer declares WORKGROUP_SIZE, SEEN, FORMAT, the tensors logits and seen, and p, and includes lib/any16.glsl.

// A Row is a row, and of which of its elements invocations hold keys and columns; of none all: passes go over it.
const uint HELD = 8;
struct Row {
    uint logits_at, seen_at;
    uint most;  // the largest key
    uint own;   // the largest key of the invocation's elements
    bool held;
    uint keys[HELD], columns[HELD];  // keys are 0 for none
};

const uint ABOVE_ALL = 0xffffffffu;

// key_of returns an integer that is larger for a larger logit, 0 for NaN and -inf. It asks the bits: Vulkan
// lets a compiler take that there is no NaN.
uint key_of(const float x) {
    const uint bits = floatBitsToUint(x);
    const uint key = bits ^ (uint(int(bits) >> 31) | 0x80000000u);
    const uint least = 0x00800000u, inf = 0xff800000u, minus_zero = 0x7fffffffu;
    return key - least > inf - least ? 0 : max(key, key == minus_zero ? 0x80000000u : 0);
}

float logit_of(const uint key) { return uintBitsToFloat(key >= 0x80000000u ? key & 0x7fffffffu : ~key); }

// keys_of returns the keys of four logits, the first n of which are in the row. The bits say which were seen.
uvec4 keys_of(const vec4 x, const uint bits, const uint n) {
    uvec4 keys = uvec4(0);
    [[unroll]] for (uint e = 0; e < 4; e++) {
        const float penalized = x[e] * (x[e] < 0.0 ? p.penalty : p.inverse_penalty);
        keys[e] = e < n ? key_of((bits >> e & 1) != 0 ? penalized : x[e]) : 0;
    }
    return keys;
}

// keys_from returns the keys of VEC columns from c on, n of them in the row, which memory has as x.
void keys_from(const Row row, const uint c, const uint n, const Bits x, out uvec4 keys[2]) {
    const uint bits = SEEN ? seen[row.seen_at + c / 32] >> c % 32 : 0;
    const Floats logits = widened(FORMAT, x);
    keys[0] = keys_of(logits.a, bits, n);
    keys[1] = QUADS == 2 ? keys_of(logits.b, bits >> 4, max(n, 4) - 4) : uvec4(0);
}

// load_keys returns the keys of VEC columns from c on.
void load_keys(const Row row, const uint c, out uvec4 keys[2]) {
    const uint n = p.vocabulary - c;
    keys_from(row, c, n, load_logits(row.logits_at + c, n), keys);
}

uint largest(const uvec4 keys) { return max(max(keys.x, keys.y), max(keys.z, keys.w)); }

// weight returns w. That of the largest is 1, of an infinite one, too.
float weight(const Row row, const uint key) {
    return key == row.most ? 1.0 : exp((logit_of(key) - logit_of(row.most)) * p.inverse_temperature);
}

shared uvec2 bests[WORKGROUP_SIZE];

bool before(const uvec2 a, const uvec2 b) { return a.x > b.x || a.x == b.x && a.y < b.y; }

// subgroup_most returns the largest x of the subgroup. Its halves go through floats, which hold them exactly: a
// driver reduces integers wrong (docs/drivers.md).
uint subgroup_most(const uint x) {
    const float high = subgroupMax(float(x >> 16));
    const float low = subgroupMax(float(x >> 16) == high ? float(x & 0xffff) : 0.0);
    return uint(high) << 16 | uint(low);
}

// first returns the largest .x of the workgroup, with the smallest .y of equals. Every invocation calls it.
uvec2 first(const uvec2 own) {
    const uint most = subgroup_most(own.x);
    const uint column = ~subgroup_most(own.x == most ? ~own.y : 0);
    barrier();  // bests read, by an earlier call, before they are written
    if (gl_SubgroupInvocationID == 0) {
        bests[gl_SubgroupID] = uvec2(most, column);
    }
    barrier();  // bests written before they are read
    uvec2 best = bests[0];
    for (uint s = 1; s < gl_NumSubgroups; s++) {
        best = before(bests[s], best) ? bests[s] : best;
    }
    return best;
}

// later returns best, which is in front of column c, or the largest key of the vector there, and c.
uvec2 later(const uvec2 best, const uvec4 keys[2], const uint c) {
    const uint key = max(largest(keys[0]), largest(keys[1]));
    return key > best.x ? uvec2(key, c) : best;
}

const uint AHEAD = 8;  // vectors of a row that an invocation loads at once

// own_first returns the largest key of the invocation's elements, and the first column of its vector.
uvec2 own_first(const Row row) {
    uvec2 own = uvec2(0, ABOVE_ALL);
    const uint whole = ALIGNED ? p.vocabulary / VEC * VEC : 0;
    for (uint c = gl_LocalInvocationIndex * VEC; c < whole; c += AHEAD * WORKGROUP_SIZE * VEC) {
        Bits x[AHEAD];
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            x[i] = load_logits(row.logits_at + min(c + i * WORKGROUP_SIZE * VEC, whole - VEC), VEC);
        }
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            const uint at = c + i * WORKGROUP_SIZE * VEC;
            if (at < whole) {
                uvec4 keys[2];
                keys_from(row, at, VEC, x[i], keys);
                own = later(own, keys, at);
            }
        }
    }
    for (uint c = whole + gl_LocalInvocationIndex * VEC; c < p.vocabulary; c += WORKGROUP_SIZE * VEC) {
        uvec4 keys[2];
        load_keys(row, c, keys);
        own = later(own, keys, c);
    }
    return own;
}

// column_of returns the first column with a key of the vector at column c, which has the key.
uint column_of(const Row row, const uint key, const uint c) {
    uvec4 keys[2];
    load_keys(row, c, keys);
    uint e = 0;
    [[unroll]] for (uint i = VEC; i > 0; i--) {
        e = keys[(i - 1) / 4][(i - 1) % 4] == key ? i - 1 : e;
    }
    return c + e;
}
