// naive_attention: a baseline without tiles. Each invocation has a row and reads one key
// after the other; nothing is shared.
//
//     S[i,j]  = scale * dot(Q[i], K[j])
//     O[i]    = sum over j of exp(S[i,j] - m) * V[j] / l
//     LSE[i]  = m + log(l),  m = max S[i,:], l = sum of exp(S[i,:] - m)
//
//     q, o  (batch, num_heads, seq_q, HEAD_DIM)      ELEM, contiguous
//     k, v  (batch, num_kv_heads, seq_kv, HEAD_DIM)  ELEM, contiguous
//     lse   (batch, num_heads, seq_q)                f32
//
// With CAUSAL, row i sees keys j <= i + shift.
//
// Dispatch: (ceil(seq_q / WORKGROUP_SIZE), num_heads, batch).
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_16bit_storage : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 64;
layout(constant_id = 1) const uint HEAD_DIM = 64;
layout(constant_id = 2) const bool CAUSAL = false;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint seq_q;
    uint seq_kv;
    uint group;  // query heads of a key head
    int shift;
    float scale;
} p;

#include "lib/element.glsl"

layout(binding = 0, scalar) readonly buffer Q { ELEM q[]; };
layout(binding = 1, scalar) readonly buffer K { ELEM k[]; };
layout(binding = 2, scalar) readonly buffer V { ELEM v[]; };
layout(binding = 3, scalar) writeonly buffer O { ELEM o[]; };
layout(binding = 4, scalar) writeonly buffer LSE { float lse[]; };

void main() {
    const uint row = gl_GlobalInvocationID.x;
    if (row >= p.seq_q) {
        return;
    }
    const uint heads = gl_NumWorkGroups.y;
    const uint head = gl_WorkGroupID.z * heads + gl_WorkGroupID.y;
    const uint kv_head = gl_WorkGroupID.z * (heads / p.group) + gl_WorkGroupID.y / p.group;
    const uint q_base = (head * p.seq_q + row) * HEAD_DIM;
    const int last = CAUSAL ? min(int(row) + p.shift, int(p.seq_kv) - 1) : int(p.seq_kv) - 1;

    float sum[HEAD_DIM];
    for (uint d = 0; d < HEAD_DIM; d++) {
        sum[d] = 0.0;
    }
    float m = -1e38;  // below every score, and finite: a row that sees no key subtracts it from nothing
    float l = 0.0;
    for (int j = 0; j <= last; j++) {
        const uint base = (kv_head * p.seq_kv + uint(j)) * HEAD_DIM;
        float s = 0.0;
        for (uint d = 0; d < HEAD_DIM; d++) {
            s += WIDEN(q[q_base + d]) * WIDEN(k[base + d]);
        }
        s *= p.scale;
        const float larger = max(m, s);
        const float rescale = exp(m - larger);
        const float weight = exp(s - larger);
        m = larger;
        l = l * rescale + weight;
        for (uint d = 0; d < HEAD_DIM; d++) {
            sum[d] = sum[d] * rescale + weight * WIDEN(v[base + d]);
        }
    }
    const float inverse = l > 0.0 ? 1.0 / l : 0.0;
    for (uint d = 0; d < HEAD_DIM; d++) {
        o[q_base + d] = NARROW(sum[d] * inverse);
    }
    lse[head * p.seq_q + row] = l > 0.0 ? m + log(l) : uintBitsToFloat(0xff800000u);  // -Inf
}
