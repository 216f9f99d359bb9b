// gmm_fwd: log-probability of tokens under mixtures of normal distributions.
//
//     log_w = log_softmax(logit)
//     log_n = -((y - mu) / exp(log_sigma))^2 / 2 - log_sigma - log(2 pi) / 2
//     log_p = logsumexp over components of log_w + log_n
//     loss  = -mean(log_p)
//
//     logit, mu, log_sigma  (tokens, components)  ELEM, any strides
//     y                     (tokens)              f32, contiguous
//     log_p                 (tokens)              f32, contiguous, written if WRITE_LOG_P
//     parts                 (workgroups, 4)       f32: in column 0 the share of the workgroup's
//                                                 tokens in the loss, written if WRITE_LOSS
//     loss                  (1)                   f32, written if WRITE_LOSS
//     count                 (1)                   of workgroups, 0 before and after; used if WRITE_LOSS
//
// A log_p beyond float32 is -inf.
//
// Dispatch: any number of workgroups; each takes WORKGROUP_SIZE / TEAM tokens in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;  // a power of two
layout(constant_id = 1) const bool WRITE_LOG_P = true;
layout(constant_id = 2) const bool WRITE_LOSS = true;
layout(constant_id = 3) const uint TEAM = 2;  // invocations that share a token
layout(local_size_x_id = 0) in;

#include "lib/gmm_inputs.glsl"

layout(push_constant, scalar) uniform Params {
    uint tokens;
    uint components;
    Place logit;
    Place mu;
    Place log_sigma;
    uint y_offset;  // elements, like all that follow
    uint log_p_offset;
    uint loss_offset;
} p;

layout(binding = 4, scalar) writeonly buffer LogP { float log_p_out[]; };
layout(binding = 5, scalar) coherent buffer Parts { vec4 parts[]; };
layout(binding = 6, scalar) writeonly buffer Loss { float loss_out[]; };
layout(binding = 7, scalar) coherent buffer Count { uint count; };

#include "lib/gmm_tensors.glsl"
#include "lib/gmm_loss.glsl"

void main() {
    const uint tid = gl_LocalInvocationIndex;
    float sum = 0.0;
    for (uint first = gl_WorkGroupID.x * TOKENS; first < p.tokens; first += gl_NumWorkGroups.x * TOKENS) {
        const uint token = min(first + tid / TEAM, p.tokens - 1);
        const Mixture m = load_mixture(token, y_in[p.y_offset + token]);
        if (tid % TEAM == 0 && first + tid / TEAM < p.tokens) {
            sum += loss_of(token, m);
        }
    }
    write_loss(sum);
}
