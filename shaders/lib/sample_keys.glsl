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
    const uint size = bits & 0x7fffffffu;
    if (size > 0x7f800000u || bits == 0xff800000u) {
        return 0;
    }
    return size == 0 ? 0x80000000u : bits == size ? bits | 0x80000000u : ~bits;
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

// keys_from returns the keys of VEC columns from c on, which memory has as x.
void keys_from(const Row row, const uint c, const Bits x, out uvec4 keys[2]) {
    const uint n = p.vocabulary - c;
    const uint bits = SEEN ? seen[row.seen_at + c / 32] >> c % 32 : 0;
    const Floats logits = widened(FORMAT, x);
    keys[0] = keys_of(logits.a, bits, n);
    keys[1] = QUADS == 2 ? keys_of(logits.b, bits >> 4, max(n, 4) - 4) : uvec4(0);
}

// load_keys returns the keys of VEC columns from c on.
void load_keys(const Row row, const uint c, out uvec4 keys[2]) {
    keys_from(row, c, load_logits(row.logits_at + c, p.vocabulary - c), keys);
}

uint largest(const uvec4 keys) { return max(max(keys.x, keys.y), max(keys.z, keys.w)); }

// weight returns w. That of the largest is 1, of an infinite one, too.
float weight(const Row row, const uint key) {
    return key == row.most ? 1.0 : exp((logit_of(key) - logit_of(row.most)) * p.inverse_temperature);
}

shared uvec2 bests[WORKGROUP_SIZE];

bool before(const uvec2 a, const uvec2 b) { return a.x > b.x || a.x == b.x && a.y < b.y; }

// first returns the largest .x of the workgroup, with the smallest .y of equals. Every invocation calls it.
uvec2 first(const uvec2 own) {
    const uint tid = gl_LocalInvocationIndex;
    barrier();  // bests read, by an earlier call, before they are written
    bests[tid] = own;
    for (uint size = WORKGROUP_SIZE / 2; size > 0; size /= 2) {
        barrier();  // bests written before they are read
        if (tid < size && before(bests[tid + size], bests[tid])) {
            bests[tid] = bests[tid + size];
        }
    }
    barrier();  // the first of all is written before it is read
    return bests[0];
}

// first_of returns the first of best, which is in front of column c, and the elements there.
uvec2 first_of(uvec2 best, const uvec4 keys[2], const uint c) {
    [[unroll]] for (uint e = 0; e < VEC; e++) {
        const uint key = keys[e / 4][e % 4];
        best = key > best.x ? uvec2(key, c + e) : best;
    }
    return best;
}

const uint AHEAD = 8;  // vectors of a row that an invocation loads at once

// own_first returns the largest key of the invocation's elements, and its first column.
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
                keys_from(row, at, x[i], keys);
                own = first_of(own, keys, at);
            }
        }
    }
    for (uint c = whole + gl_LocalInvocationIndex * VEC; c < p.vocabulary; c += WORKGROUP_SIZE * VEC) {
        uvec4 keys[2];
        load_keys(row, c, keys);
        own = first_of(own, keys, c);
    }
    return own;
}
