// gemm_mixture: the probability of a number for each row under a mixture of normal
// distributions. The components are the outputs of two-layer perceptrons that share their
// input, as in gemm_skinny. Neither hidden units nor outputs reach memory.
//
//     (logit, mu, log_sigma)[k] = silu(alpha * op(A) * op(B[k])) * W[k]    of component k
//     C = the state of lib/gmm.glsl after the components of a group, at y
//
//     op(A)  (m, k)  ELEM, from A (m, k) with A_BY_K, else (k, m); last axis contiguous
//     op(B)  (HEADS, k, n)  ELEM, from B (n, k) with B_BY_K, else (k, n); likewise
//     W      (HEADS, n, 3)  ELEM, last axis contiguous; at R of lib/gemm_params.glsl
//     y      (m)  f32, contiguous; at X
//     C      (groups, m, c_stride) f32: of the heads [g * HEADS / groups, (g + 1) * HEADS / groups)
//
// A workgroup has a block of rows and a group of heads. Head after head it multiplies its
// rows by the columns of B, block after block, and sums the outputs in shared memory; these
// become a component. The state after the components before is in C, because the products
// need the registers. Outputs are float32 throughout.
//
// Dispatch: (x, y, groups) with x * y >= tiles, the blocks of rows.
#version 460
#include "lib/gemm_constants.glsl"
layout(constant_id = 25) const uint HEADS = 10;
layout(local_size_x_id = 0) in;

const uint COLUMNS = 3;  // of W

#define EPILOGUE_ID 16
#include "lib/gemm_tensors.glsl"
#include "lib/gemm_matrix.glsl"
#include "lib/gemm_skinny.glsl"
#include "lib/gmm.glsl"

shared float outputs[BLOCK_M * SUBGROUPS_N * COLUMNS];  // sums over the columns of op(B) of one subgroup

void add_row(const Work w, const uint row, const bool first, const float y[COLUMNS]) {
    const uint at = ((row - w.row) * SUBGROUPS_N + gl_SubgroupID % SUBGROUPS_N) * COLUMNS;
    const bool set = first && w.col == 0;
    [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
        outputs[at + o] = set ? y[o] : outputs[at + o] + y[o];
    }
}

// add_component merges the outputs of a head with the outputs of the heads before it.
void add_component(const uint block_row, const uint group, const bool first) {
    for (uint r = gl_LocalInvocationIndex; r < BLOCK_M; r += WORKGROUP_SIZE) {
        const uint row = block_row + r;
        if (row >= p.m) {
            return;
        }
        float y[COLUMNS];
        [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
            y[o] = 0.0;
            [[unroll]] for (uint s = 0; s < SUBGROUPS_N; s++) {
                y[o] += outputs[(r * SUBGROUPS_N + s) * COLUMNS + o];
            }
        }
        const uint at = (ROW_AT(c, group, row)) / 4;
        Mixture m = alone(component(y[0], y[1], y[2], x1[p.x_offset + row]));
        if (!first) {
            m = merge(unpack(c4[at], c4[at + 1]), m);
        }
        c4[at] = pack_first(m);
        c4[at + 1] = pack_second(m);
    }
}

void main() {
    const uint block = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (block >= p.tiles) {
        return;
    }
    const uint group = gl_WorkGroupID.z;
    const uint first = group * HEADS / gl_NumWorkGroups.z;
    const uint end = (group + 1) * HEADS / gl_NumWorkGroups.z;
    [[dont_unroll]] for (uint head = first; head < end; head++) {
        [[dont_unroll]] for (uint col = 0; col < p.n; col += BLOCK_N) {
            const Work w = Work(block * BLOCK_M, col, head, 0, true);
            barrier();  // the block before is read
            load_w(w.batch, w.col);
            gemm(w);
        }
        barrier();  // outputs written before they are read, and read before the next gemm is past its first barrier
        add_component(block * BLOCK_M, group, head == first);
    }
}
