// gmm_merge: log-probability of tokens under mixtures of normal distributions, from the states
// of lib/gmm.glsl that other kernels left for groups of components.
//
//     log_p = log-probability of y under all groups of a token
//     loss  = -mean(log_p)
//
//     states  (groups, tokens, 8)  f32
//     log_p   (tokens)             f32, contiguous, written if WRITE_LOG_P
//     parts   (workgroups, 4)      f32: in column 0 the share of the workgroup's tokens
//                                  in the loss, written if WRITE_LOSS
//     loss    (1)              f32, written if WRITE_LOSS
//     count   (1)              of workgroups, 0 before and after; used if WRITE_LOSS
//
// Groups are merged in order, so results do not depend on timing.
//
// Dispatch: any number of workgroups; each takes tokens in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 64;  // a power of two
layout(constant_id = 1) const bool WRITE_LOG_P = true;
layout(constant_id = 2) const bool WRITE_LOSS = true;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint tokens;
    uint groups;
    uint offset;  // of states, in elements, like all that follow; multiples of 4
    uint stride_g;
    uint stride_t;
    uint log_p_offset;
    uint loss_offset;
} p;

layout(binding = 0, scalar) readonly buffer States { vec4 states[]; };
layout(binding = 1, scalar) writeonly buffer LogP { float log_p_out[]; };
layout(binding = 2, scalar) coherent buffer Parts { vec4 parts[]; };
layout(binding = 3, scalar) writeonly buffer Loss { float loss_out[]; };
layout(binding = 4, scalar) coherent buffer Count { uint count; };

#include "lib/gmm_loss.glsl"

Mixture load_group(const uint token, const uint group) {
    const uint at = (p.offset + group * p.stride_g + token * p.stride_t) / 4;
    return unpack(states[at], states[at + 1]);
}

Mixture mixture_of(const uint token) {
    Mixture m = load_group(token, 0);
    for (uint group = 1; group < p.groups; group++) {
        m = merge(m, load_group(token, group));
    }
    return m;
}

void main() {
    float sum = 0.0;
    for (uint token = gl_GlobalInvocationID.x; token < p.tokens; token += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        sum += loss_of(token, mixture_of(token));
    }
    write_loss(sum);
}
