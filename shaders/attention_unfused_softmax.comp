// attention_unfused_softmax: the second of three steps of attention with the
// scores in memory: softmax of each row, in place.
//
//     P[h, i, :]  = exp2(S2[h, i, :] - m) / sum(exp2(S2[h, i, :] - m)),  m = max(S2[h, i, :])
//     LSE[h, i]   = (m + log2(sum(exp2(S2[h, i, :] - m)))) * ln(2)
//
//     s2   (heads of the dispatch, seq_q, seq_kv)  f32, base-2 logits in, P out
//     lse  (batch, num_heads, seq_q)               f32, last axis contiguous
//
// A row that sees no key becomes all zero, its LSE -Inf.
//
// With FEATURES, the sink of the head is one more score of each row, dropout sets
// weights to 0, and only keys in the row's window are read and written.
//
// Dispatch: (rows, 1, 1) with heads in z, one workgroup for each row, rows
// folded into y where there are more than fit in x.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const bool WRITE_LSE = true;
layout(local_size_x_id = 0) in;

#define FEATURES_ID 2
#define FEATURES_BINDING 2
#define A_OF_KEYS false
#define ELEM float  // of a bias, which is not read here
#define WIDEN(x) (x)
#include "lib/params_unfused.glsl"

layout(binding = 0, scalar) buffer S2 { float s2[]; };
layout(binding = 1, scalar) writeonly buffer LSE { float lse_out[]; };

shared float partial[WORKGROUP_SIZE];

#include "lib/softmax.glsl"
#include "lib/features.glsl"

// reduce returns the maximum (or with SUM the sum) of x over the workgroup, a
// power of two of invocations. Every invocation calls it.
float reduce(const float x, const bool SUM) {
    const uint tid = gl_LocalInvocationIndex;
    barrier();  // the result before is read
    partial[tid] = x;
    for (uint half_size = WORKGROUP_SIZE / 2; half_size > 0; half_size /= 2) {
        barrier();  // partial written before it is read
        if (tid < half_size) {
            const float y = partial[tid + half_size];
            partial[tid] = SUM ? partial[tid] + y : max(partial[tid], y);
        }
    }
    barrier();  // the result is written
    return partial[0];
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint row = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (row >= p.seq_q) {
        return;
    }
#ifdef FEATURES
    const uint number = p.first_head + gl_WorkGroupID.z;
    const Block block = enter_block(number / p.num_heads, number % p.num_heads, row, 1);
    if (!block.exists) {
        return;
    }
    const uint base = s2_row(row) + block.first_key;
#else
    const uint base = (gl_WorkGroupID.z * p.seq_q + row) * p.seq_kv;
#endif
    float m = MAX_INIT;
    for (uint j = tid; j < p.seq_kv; j += WORKGROUP_SIZE) {
        m = max(m, s2[base + j]);
    }
    m = reduce(m, false);
    float l = 0.0;
    for (uint j = tid; j < p.seq_kv; j += WORKGROUP_SIZE) {
        l += exp2(s2[base + j] - m);
    }
    l = reduce(l, true);
#ifdef FEATURES
    add_sink(block, m, l);
#endif
    for (uint j = tid; j < p.seq_kv; j += WORKGROUP_SIZE) {
#ifdef FEATURES
        const float weight = exp2(s2[base + j] - m) * (inverse_sum(l) * keep_scale());
        const uint key = block.first_key + j;
        s2[base + j] = !DROPOUT || kept_of_four(block, row, key / 4)[key % 4] ? weight : 0.0;
#else
        s2[base + j] = exp2(s2[base + j] - m) * inverse_sum(l);
#endif
    }
    if (WRITE_LSE && tid == 0) {
        const uint head = (p.first_head + gl_WorkGroupID.z) % p.num_heads;
        const uint batch = (p.first_head + gl_WorkGroupID.z) / p.num_heads;
        lse_out[HEAD_AT(lse, batch, head) + row] = lse(m, l);
    }
}
