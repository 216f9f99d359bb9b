// embed_bwd: the gradient of the table of embed_fwd.
//
//     dtable[row,:] = sum of dout[t,:] over the tokens t of the row, in their order
//
//     sorted  (tokens)                (row, token), as embed_sort leaves them
//     dout    (tokens, dim)           FROM_FORMAT, row stride, last axis contiguous
//     dtable  (vocabulary, dim)       TO_FORMAT, likewise; only rows with tokens are written
//     parts   (blocks, 2, vecs, VEC)  f32
//
// A block is BLOCK neighbours of sorted. Without CARRY an invocation adds a vector of the block's
// tokens, one after the other. It writes the sum of a row whose tokens are all in the block. The sums of
// others are parts: the first of a block is of the row that began in a block before, the second of
// the row that goes on in the next one. With CARRY an invocation adds the parts of the row that begins
// in its block and goes on, in order.
//
// With ACCUMULATE a sum is added to what dtable held.
//
// Dispatch: any number of workgroups; each takes vectors of blocks in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;
layout(constant_id = 1) const uint VEC = 8;
layout(constant_id = 2) const bool ALIGNED = true;
layout(constant_id = 3) const uint FROM_FORMAT = 0;
layout(constant_id = 4) const uint TO_FORMAT = 0;
layout(constant_id = 5) const bool ACCUMULATE = false;
layout(constant_id = 6) const bool CARRY = false;
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint tokens;
    uint vocabulary;
    uint dim;
    ROW_STRIDE(dout)  // elements, like all that follow
    ROW_STRIDE(dtable)
} p;

#include "lib/any16.glsl"

layout(binding = 0, scalar) readonly buffer Sorted { uvec2 sorted[]; };
ANY16(1, readonly, DOut, dout)
LOAD_ANY16(dout, FROM_FORMAT)
ANY16(2, , DTable, dtable)
LOAD_ANY16(dtable, TO_FORMAT)
STORE_ANY16(dtable, TO_FORMAT)
layout(binding = 3, scalar) buffer Parts { vec4 parts[]; };

const uint BLOCK = 32;
const uint AHEAD = 4;  // tokens whose loads are in flight together

uint vecs() { return (p.dim + VEC - 1) / VEC; }

// part_at returns where in parts the vector v of a part of a block is.
uint part_at(const uint block, const uint part, const uint v) { return ((2 * block + part) * vecs() + v) * QUADS; }

void put_part(const uint at, const Floats sum) {
    parts[at] = sum.a;
    if (QUADS == 2) {
        parts[at + 1] = sum.b;
    }
}

Floats part(const uint at) { return Floats(parts[at], QUADS == 2 ? parts[at + QUADS - 1] : vec4(0.0)); }

// row_after returns the row of a place in sorted, none past its end.
uint row_after(const uint place) { return place < p.tokens ? sorted[place].x : ~0u; }

// row_before returns the row of the place before one, none before the first.
uint row_before(const uint place) { return place > 0 ? sorted[place - 1].x : ~0u; }

void write(const uint row, const uint v, const Floats sum) {
    const uint at = p.dtable_offset + row * p.dtable_stride + v * VEC;
    const uint rest = p.dim - v * VEC;
    Floats x = sum;
    if (ACCUMULATE) {
        x = sum_of(widened(TO_FORMAT, load_dtable(at, rest)), sum);
    }
    store_dtable(at, rest, narrowed(TO_FORMAT, x));
}

// finish writes the sum of a row, or a part of it: the row began in this block or before, and ends in
// it or goes on.
void finish(const uint block, const uint row, const uint v, const bool began, const bool ends, const Floats sum) {
    if (row >= p.vocabulary) {
        return;
    }
    if (began && ends) {
        write(row, v, sum);
    } else {
        put_part(part_at(block, began ? 1 : 0, v), sum);
    }
}

void add_block(const uint block, const uint v) {
    const uint first = block * BLOCK;
    const uint end = min(first + BLOCK, p.tokens);
    uint row = sorted[first].x;
    if (row >= p.vocabulary) {
        return;  // and so are all others
    }
    bool began = row_before(first) != row;
    Floats sum = ZEROS;
    for (uint at = first; at < end; at += AHEAD) {
        uint rows[AHEAD];
        Bits x[AHEAD];
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            const uvec2 next = sorted[min(at + i, end - 1)];
            rows[i] = next.x;
            x[i] = load_dout(p.dout_offset + next.y * p.dout_stride + v * VEC, p.dim - v * VEC);
        }
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            if (at + i >= end) {
                continue;
            }
            if (rows[i] != row) {
                finish(block, row, v, began, true, sum);
                sum = ZEROS;
                row = rows[i];
                began = true;
            }
            sum = sum_of(sum, widened(FROM_FORMAT, x[i]));
        }
    }
    finish(block, row, v, began, row_after(end) != row, sum);
}

void add_parts(const uint block, const uint v) {
    const uint first = block * BLOCK;
    const uint end = min(first + BLOCK, p.tokens);
    const uint row = sorted[end - 1].x;
    if (row >= p.vocabulary || row_after(end) != row || row_before(first) == row) {
        return;
    }
    Floats sum = part(part_at(block, 1, v));
    for (uint next = block + 1; row_after(next * BLOCK) == row; next++) {
        sum = sum_of(sum, part(part_at(next, 0, v)));
    }
    write(row, v, sum);
}

void main() {
    const uint blocks = (p.tokens + BLOCK - 1) / BLOCK;
    for (uint i = gl_GlobalInvocationID.x; i < blocks * vecs(); i += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        if (CARRY) {
            add_parts(i / vecs(), i % vecs());
        } else {
            add_block(i / vecs(), i % vecs());
        }
    }
}
