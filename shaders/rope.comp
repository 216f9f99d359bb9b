// rope: rotary position embedding: pairs of a row are turned by the row's position.
//
//     angle  = position * turns[i] / 2^64 turns, without whole ones
//     (x, y) -> (x cos - y sin, y cos + x sin)
//
//     q, q_out   (batch, heads, seq, dim)     ELEM, any strides, last axis contiguous; may be one tensor
//     k, k_out   (batch, kv_heads, seq, dim)  likewise
//     positions  (batch, seq)                 i32
//     turns      (dims / 2)                   low and high word of a frequency
//
// Pair i is elements i and i + dims/2, with INTERLEAVED 2i and 2i + 1. The cosines have cos_factor, the
// sines sin_factor, which is negative in the backward pass. Elements from dims on are copied.
//
// An invocation has an item: WIDTH elements and, if they are turned, their partners, in HEADS heads of a
// row, which share the angles. It loads all of them before it stores any.
//
// Dispatch: any number of workgroups; invocations take items in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const bool INTERLEAVED = false;
layout(constant_id = 2) const uint WIDTH = 8;       // VEC; less where partners would be within a vector, or half in it
layout(constant_id = 3) const bool ALIGNED = true;  // offsets and strides are multiples of 16 bytes
layout(local_size_x_id = 0) in;

// Where a tensor lies: its first element, and the elements to the next batch, head and row.
struct Place {
    uint offset, stride_b, stride_h, stride_s;
};

layout(push_constant, scalar) uniform Params {
    uint batch;
    uint seq;
    uint heads;
    uint kv_heads;
    uint dim;
    uint dims;    // that are turned, even
    uint copies;  // items of a row that are copied
    float cos_factor;
    float sin_factor;
    uint turns_offset;  // elements, like all that follow
    uint positions_offset;
    uint positions_stride_b;
    Place q;
    Place k;
    Place q_out;
    Place k_out;
} p;

#include "lib/vec16.glsl"
#include "lib/turn.glsl"

READ16(0, Q, q)
READ16(1, K, k)
layout(binding = 2, scalar) readonly buffer Positions { int positions[]; };
layout(binding = 3, scalar) readonly buffer Turns { uint turns[]; };
WRITE16(4, QOut, q_out)
WRITE16(5, KOut, k_out)

const uint HEADS = 4;

// A row of all heads, the heads of q first.
struct Row {
    uint batch, token;
};

uint at(const Place place, const Row row, const uint head) {
    return place.offset + row.batch * place.stride_b + head * place.stride_h + row.token * place.stride_s;
}

uvec4 load(const Row row, const uint head, const uint column, const uint n) {
    if (head < p.heads) {
        return load_q(at(p.q, row, head) + column, n);
    } else if (head < p.heads + p.kv_heads) {
        return load_k(at(p.k, row, head - p.heads) + column, n);
    }
    return uvec4(0);
}

void store(const Row row, const uint head, const uint column, const uint n, const uvec4 v) {
    if (head < p.heads) {
        store_q_out(at(p.q_out, row, head) + column, n, v);
    } else if (head < p.heads + p.kv_heads) {
        store_k_out(at(p.k_out, row, head - p.heads) + column, n, v);
    }
}

// angle_of returns cosine and sine of pair i at a position.
vec2 angle_of(const int position, const uint i) {
    const uint at = p.turns_offset + 2 * min(i, p.dims / 2 - 1);  // what WIDTH leaves out is last
    uint high, low;
    umulExtended(uint(position), turns[at], high, low);
    const uint angle = uint(position) * turns[at + 1] + high - (position < 0 ? turns[at] : 0);  // 2^32 in a turn
    // The rest x beyond a quarter of a turn is from -pi/4 to pi/4, where the polynomials, from Moshier's
    // Cephes library, are right to 2^-24.
    const uint quarter = (angle + (1 << 29)) >> 30;
    const float x = float(int(angle - (quarter << 30))) * 1.46291807927e-9;  // 2 pi / 2^32
    const float z = x * x;
    const float s = x + x * z * (-1.6666654611e-1 + z * (8.3321608736e-3 + z * -1.9515295891e-4));
    const float c = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5));
    const vec2 turned = (quarter & 1) == 0 ? vec2(c, s) : vec2(-s, c);
    return (quarter & 2) == 0 ? turned : -turned;
}

// angles_of returns the cosines and sines of four pairs, times their factors.
void angles_of(const int position, const uint i, out vec4 c, out vec4 s) {
    [[unroll]] for (uint e = 0; e < 4; e++) {
        const vec2 angle = angle_of(position, i + e);
        c[e] = p.cos_factor * angle.x;
        s[e] = p.sin_factor * angle.y;
    }
}

// turn_halves turns pairs of elements from a column on with those half of dims after them.
void turn_halves(const Row row, const uint head, const uint column, const int position) {
    vec4 c[QUADS], s[QUADS];
    [[unroll]] for (uint i = 0; i < QUADS; i++) {
        angles_of(position, column + i * 4, c[i], s[i]);
    }
    uvec4 a[HEADS], b[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        a[h] = load(row, head + h, column, WIDTH);
        b[h] = load(row, head + h, column + p.dims / 2, WIDTH);
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        vec4 x[QUADS], y[QUADS];
        [[unroll]] for (uint i = 0; i < QUADS; i++) {
            x[i] = quad(a[h], i);
            y[i] = quad(b[h], i);
            turn(x[i], y[i], c[i], s[i]);
        }
        store(row, head + h, column, WIDTH, pack(x[0], x[QUADS - 1]));
        store(row, head + h, column + p.dims / 2, WIDTH, pack(y[0], y[QUADS - 1]));
    }
}

// turn_neighbours turns the pairs of elements from a column on.
void turn_neighbours(const Row row, const uint head, const uint column, const int position) {
    vec4 c, s;
    angles_of(position, column / 2, c, s);
    uvec4 a[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        a[h] = load(row, head + h, column, WIDTH);
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        const vec4 u = quad(a[h], 0);
        const vec4 v = quad(a[h], QUADS - 1);
        vec4 x = vec4(u.xz, v.xz);
        vec4 y = vec4(u.yw, v.yw);
        turn(x, y, c, s);
        store(row, head + h, column, WIDTH, pack(vec4(x.x, y.x, x.y, y.y), vec4(x.z, y.z, x.w, y.w)));
    }
}

void copy(const Row row, const uint head, const uint column) {
    uvec4 a[HEADS];
    const uint n = min(p.dim - column, WIDTH);
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        a[h] = load(row, head + h, column, n);
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        store(row, head + h, column, n, a[h]);
    }
}

void main() {
    const uint span = (INTERLEAVED ? p.dims : p.dims / 2) / WIDTH;
    const uint items = span + p.copies;
    const uint groups = (p.heads + p.kv_heads + HEADS - 1) / HEADS;
    for (uint i = gl_GlobalInvocationID.x; i < p.batch * p.seq * groups * items; i += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        const uint item = i % items;
        const uint head = i / items % groups * HEADS;
        const Row row = Row(i / items / groups / p.seq, i / items / groups % p.seq);
        const int position = positions[p.positions_offset + row.batch * p.positions_stride_b + row.token];
        if (item >= span) {
            copy(row, head, p.dims + (item - span) * WIDTH);
        } else if (INTERLEAVED) {
            turn_neighbours(row, head, item * WIDTH, position);
        } else {
            turn_halves(row, head, item * WIDTH, position);
        }
    }
}
