// embed_fwd: rows of a table by their numbers.
//
//     out[t,:] = table[ids[t],:]       0 if ids[t] is not in 0..vocabulary-1
//
//     ids    (tokens)           i32, contiguous
//     table  (vocabulary, dim)  FROM_FORMAT, row stride, last axis contiguous
//     out    (tokens, dim)      TO_FORMAT, likewise
//
// With ACCUMULATE the rows are added to what out held, in float32. With ZERO all rows are 0; ids and
// table are not read.
//
// Dispatch: any number of workgroups; each takes vectors in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;
layout(constant_id = 1) const uint VEC = 8;
layout(constant_id = 2) const bool ALIGNED = true;
layout(constant_id = 3) const uint FROM_FORMAT = 0;
layout(constant_id = 4) const uint TO_FORMAT = 0;
layout(constant_id = 5) const bool ACCUMULATE = false;
layout(constant_id = 6) const bool ZERO = false;
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint tokens;
    uint vocabulary;
    uint dim;
    uint ids_offset;  // elements, like all that follow
    ROW_STRIDE(table)
    ROW_STRIDE(out)
} p;

#include "lib/any16.glsl"

layout(binding = 0, scalar) readonly buffer IDs { int ids[]; };
ANY16(1, readonly, Table, table)
LOAD_ANY16(table, FROM_FORMAT)
ANY16(2, , Out, out)
LOAD_ANY16(out, TO_FORMAT)
STORE_ANY16(out, TO_FORMAT)

const uint EACH = 4;  // vectors that an invocation has at a time: their loads are in flight together

void main() {
    const uint vecs = (p.dim + VEC - 1) / VEC;
    const uint all = p.tokens * vecs;
    const uint step = gl_NumWorkGroups.x * WORKGROUP_SIZE;
    for (uint first = gl_GlobalInvocationID.x; first < all; first += EACH * step) {
        Bits x[EACH];
        bool found[EACH];
        [[unroll]] for (uint i = 0; i < EACH; i++) {
            const uint item = min(first + i * step, all - 1);
            const uint c = item % vecs * VEC;
            const uint row = ZERO ? p.vocabulary : uint(ids[p.ids_offset + item / vecs]);
            x[i] = NO_BITS;
            found[i] = row < p.vocabulary;
            if (found[i]) {
                x[i] = load_table(p.table_offset + row * p.table_stride + c, p.dim - c);
            }
        }
        [[unroll]] for (uint i = 0; i < EACH; i++) {
            const uint item = first + i * step;
            if (item >= all || ACCUMULATE && !found[i]) {
                continue;
            }
            const uint c = item % vecs * VEC;
            const uint at = p.out_offset + item / vecs * p.out_stride + c;
            if (ACCUMULATE) {
                const Floats sum = sum_of(widened(TO_FORMAT, load_out(at, p.dim - c)), widened(FROM_FORMAT, x[i]));
                x[i] = narrowed(TO_FORMAT, sum);
            } else if (TO_FORMAT != FROM_FORMAT) {
                x[i] = narrowed(TO_FORMAT, widened(FROM_FORMAT, x[i]));
            }
            store_out(at, p.dim - c, x[i]);
        }
    }
}
