// gmm_bwd: gradients of gmm_fwd. r_k = exp(a_k) / sum of exp(a) is the share of component k in the
// probability of a token, w_k its weight, and g = -dloss / tokens the gradient of log_p:
//
//     dlogit     = g * (r_k - w_k)
//     dmu        = g * r_k * z_k / sigma_k
//     dlog_sigma = g * r_k * (z_k^2 - 1)
//
//     logit, mu, log_sigma     (tokens, components)  ELEM, any strides
//     dlogit, dmu, dlog_sigma  (tokens, components)  GRAD_FORMAT, any strides
//     y                        (tokens)              f32, contiguous
//     dloss                    (1)                   f32, read if READ_DLOSS; else 1
//
// Gradients beyond float32 or beyond their format are infinite, or with SATURATE the
// largest number. A share of 0 gives 0, not 0 * inf.
//
// Dispatch: any number of workgroups; each takes WORKGROUP_SIZE / TEAM tokens in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const bool READ_DLOSS = false;
layout(constant_id = 2) const uint GRAD_FORMAT = 0;  // of lib/formats.glsl
layout(constant_id = 3) const bool SATURATE = false;
layout(constant_id = 4) const uint TEAM = 4;  // invocations that share a token
layout(local_size_x_id = 0) in;

#include "lib/element.glsl"
#include "lib/formats.glsl"
#include "lib/gmm_inputs.glsl"

layout(push_constant, scalar) uniform Params {
    uint tokens;
    uint components;
    Place logit;
    Place mu;
    Place log_sigma;
    uint y_offset;  // elements, like all that follow
    Place dlogit;
    Place dmu;
    Place dlog_sigma;
    uint dloss_offset;
} p;

layout(binding = 4, scalar) readonly buffer DLoss { float dloss_in[]; };
layout(binding = 5, scalar) writeonly buffer DLogit { float dlogit32[]; };
layout(binding = 5, scalar) writeonly buffer DLogit16 { uint16_t dlogit16[]; };
layout(binding = 6, scalar) writeonly buffer DMu { float dmu32[]; };
layout(binding = 6, scalar) writeonly buffer DMu16 { uint16_t dmu16[]; };
layout(binding = 7, scalar) writeonly buffer DLogSigma { float dlog_sigma32[]; };
layout(binding = 7, scalar) writeonly buffer DLogSigma16 { uint16_t dlog_sigma16[]; };

#include "lib/gmm_tensors.glsl"

float times(const float a, const float b) { return a == 0.0 ? 0.0 : a * b; }

// limited returns x within the range of its format.
float limited(const float x) {
    const float most = uintBitsToFloat(GRAD_FORMAT == FORMAT_F32 ? 0x7f7fffffu : GRAD_FORMAT == FORMAT_F16 ? 0x477fe000u : 0x7f7f0000u);
    return SATURATE && abs(x) > most ? sign(x) * most : x;  // a NaN stays one
}

// PUT stores x as element i of a gradient, given as 32-bit and as 16-bit elements.
#define PUT(floats, halves, i, x)                                  \
    if (GRAD_FORMAT == FORMAT_F32) {                               \
        floats[i] = limited(x);                                    \
    } else {                                                       \
        halves[i] = uint16_t(narrow_to(GRAD_FORMAT, limited(x)));  \
    }

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const float g = -(READ_DLOSS ? dloss_in[p.dloss_offset] : 1.0) / float(p.tokens);
    for (uint begin = gl_WorkGroupID.x * TOKENS; begin < p.tokens; begin += gl_NumWorkGroups.x * TOKENS) {
        const uint token = min(begin + tid / TEAM, p.tokens - 1);
        const float y = y_in[p.y_offset + token];
        const Mixture m = load_mixture(token, y);
        if (begin + tid / TEAM >= p.tokens) {
            continue;  // the last round: no barrier follows
        }
        for (uint first = 0; component_of(first) < p.components; first += BATCH) {
            if (p.components > TEAM * BATCH) {  // else they are there
                load_batch(token, first);
            }
            [[unroll]] for (uint i = 0; i < BATCH; i++) {
                const uint k = component_of(first + i);
                if (k < p.components) {
                    const Component c = component(batch[i].x, batch[i].y, batch[i].z, y);
                    const float r = exp(log_ratio(c.density, m.best)) / m.joint;
                    const float w = exp(c.density.logit - m.max_logit) / m.weights;
                    const float part = g * r;
                    PUT(dlogit32, dlogit16, at(p.dlogit, token, k), g * (r - w))
                    PUT(dmu32, dmu16, at(p.dmu, token, k), times(part, over_sigma(c.z, c.half_inverse)))
                    PUT(dlog_sigma32, dlog_sigma16, at(p.dlog_sigma, token, k), times(part, c.z * c.z - 1.0))
                }
            }
        }
    }
}
