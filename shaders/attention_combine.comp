// attention_combine: the results of a forward pass whose keys were divided among
// workgroups (lib/split_kv.glsl).
//
//     m   = max over splits of m_s
//     l   = sum of exp2(m_s - m) * l_s
//     O   = sum of exp2(m_s - m) * O_s / l
//     LSE = (m + log2(l)) * ln(2)
//
//     o_s    (batch, num_heads, splits, seq_q, head_dim)  f32, contiguous
//     ml_s   (batch, num_heads, splits, seq_q, 2)         f32, contiguous: m_s and l_s
//     o      (batch, num_heads, seq_q, head_dim)          ELEM, any strides, last axis contiguous
//     lse    (batch, num_heads, seq_q)                    f32, any strides
//
// A split in which a row sees no key has l = 0 and a very low m, so it does not count. If
// all splits are such, O = 0 and LSE = -inf.
//
// A workgroup owns some rows. Each row has TEAMS teams of head_dim/4 invocations, with four
// columns per invocation. Teams take the splits in turn; then the first team adds the teams'
// results in order, so results do not depend on timing.
//
// Dispatch: (ceil(seq_q / ROWS), num_heads, batch).
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint TEAMS = 4;
layout(constant_id = 2) const uint HEAD_DIM = 64;
layout(constant_id = 3) const bool WRITE_LSE = true;
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint seq_q;
    uint splits;
    uint first_batch;  // of the dispatch
    STRIDES(o)
    STRIDES(lse)
} p;

#include "lib/element.glsl"
#include "lib/softmax.glsl"

layout(binding = 0, scalar) readonly buffer PartO { vec4 part_o[]; };
layout(binding = 1, scalar) readonly buffer PartML { vec2 part_ml[]; };
layout(binding = 2, scalar) writeonly buffer O { ELEM o[]; };
layout(binding = 3, scalar) writeonly buffer LSE { float lse_out[]; };

const uint COLS4 = HEAD_DIM / 4;                      // vec4 of one row
const uint ROWS = WORKGROUP_SIZE / (TEAMS * COLS4);  // rows of a workgroup; at least 1

// The state of four columns of a row after some of its keys.
struct Part {
    float m;
    float l;
    vec4 o;
};

shared Part parts[WORKGROUP_SIZE];

Part merge(const Part a, const Part b) {
    const float m = max(a.m, b.m);  // finite, as MAX_INIT is
    const float x = exp2(a.m - m);
    const float y = exp2(b.m - m);
    return Part(m, x * a.l + y * b.l, x * a.o + y * b.o);
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint col = tid % COLS4;
    const uint team = tid / COLS4 % TEAMS;
    const uint row = gl_WorkGroupID.x * ROWS + tid / (COLS4 * TEAMS);
    const uint head = gl_WorkGroupID.y;
    const uint batch = p.first_batch + gl_WorkGroupID.z;
    const bool works = tid < ROWS * TEAMS * COLS4 && row < p.seq_q;

    Part x = Part(MAX_INIT, 0.0, vec4(0.0));
    if (works) {
        const uint first = (batch * gl_NumWorkGroups.y + head) * p.splits * p.seq_q + row;
        for (uint s = team; s < p.splits; s += TEAMS) {
            const uint at = first + s * p.seq_q;
            const vec2 ml = part_ml[at];
            x = merge(x, Part(ml.x, ml.y, part_o[at * COLS4 + col]));
        }
    }
    parts[tid] = x;
    barrier();  // parts written before they are read
    if (!works || team != 0) {
        return;
    }
    for (uint t = 1; t < TEAMS; t++) {
        x = merge(x, parts[tid + t * COLS4]);
    }
    const vec4 result = x.o * inverse_sum(x.l);
    const uint o_at = HEAD_AT(o, batch, head) + row * p.o_stride_s + col * 4;
    for (uint e = 0; e < 4; e++) {
        o[o_at + e] = NARROW(result[e]);
    }
    if (WRITE_LSE && col == 0) {
        lse_out[HEAD_AT(lse, batch, head) + row * p.lse_stride_s] = lse(x.m, x.l);
    }
}
