// gmm_bwd: gradients of gmm_fwd. With r_k the part of component k in the probability of
// a token, exp(a_k) / sum of exp(a), w_k its weight, and g the gradient of log_p, which
// is -dloss / tokens,
//
//     dlogit     = g * (r_k - w_k)
//     dmu        = g * r_k * z_k / sigma_k
//     dlog_sigma = g * r_k * (z_k^2 - 1)
//
//     logit, mu, log_sigma     (tokens, components)  ELEM, any strides
//     dlogit, dmu, dlog_sigma  (tokens, components)  ELEM, any strides
//     y                        (tokens)              f32, contiguous
//     dloss                    (1)                   f32, read if READ_DLOSS; else 1
//
// Gradients that float32 cannot hold are infinite. A part of 0 makes 0, not 0 * inf.
//
// Dispatch: any number of workgroups; each takes tokens in turn.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_16bit_storage : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 64;
layout(constant_id = 1) const bool READ_DLOSS = false;
layout(local_size_x_id = 0) in;

// Where a tensor (tokens, components) lies, in elements.
struct Place {
    uint offset;
    uint stride_t;
    uint stride_k;
};

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

#include "lib/element.glsl"

layout(binding = 0, scalar) readonly buffer Logit { ELEM logit_in[]; };
layout(binding = 1, scalar) readonly buffer Mu { ELEM mu_in[]; };
layout(binding = 2, scalar) readonly buffer LogSigma { ELEM log_sigma_in[]; };
layout(binding = 3, scalar) readonly buffer Y { float y_in[]; };
layout(binding = 4, scalar) readonly buffer DLoss { float dloss_in[]; };
layout(binding = 5, scalar) writeonly buffer DLogit { ELEM dlogit_out[]; };
layout(binding = 6, scalar) writeonly buffer DMu { ELEM dmu_out[]; };
layout(binding = 7, scalar) writeonly buffer DLogSigma { ELEM dlog_sigma_out[]; };

#include "lib/gmm.glsl"

// times returns a * b, 0 if a is 0.
float times(const float a, const float b) {
    return a == 0.0 ? 0.0 : a * b;
}

void main() {
    const float g = -(READ_DLOSS ? dloss_in[p.dloss_offset] : 1.0) / float(p.tokens);
    for (uint token = gl_GlobalInvocationID.x; token < p.tokens; token += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        const float y = y_in[p.y_offset + token];
        const Mixture m = mixture(token, y);
        for (uint k = 0; k < p.components; k++) {
            const Component c = component(token, k, y, m);
            const float r = exp(c.a - m.max_a) / m.joint;
            const float w = exp(c.logit) / m.weights;
            const float part = g * r;
            dlogit_out[at(p.dlogit, token, k)] = NARROW(g * (r - w));
            dmu_out[at(p.dmu, token, k)] = NARROW(times(part, over_sigma(c.z, c.half_inverse)));
            dlog_sigma_out[at(p.dlog_sigma, token, k)] = NARROW(times(part, c.z * c.z - 1.0));
        }
    }
}
