// gmm_tensors: the mixtures of lib/gmm.glsl in tensors (tokens, components), for a workgroup
// that has TOKENS of them at a time.
//
// TEAM neighbouring invocations have a token, each every TEAM-th component, so that
// neighbours load and store what lies next to each other in memory.
//
// The includer includes lib/gmm_inputs.glsl first and declares the specialization constants TEAM, a
// power of two, and WORKGROUP_SIZE, a multiple of it; and `p` with tokens, components and a Place
// for each of logit, mu and log_sigma.
#extension GL_EXT_control_flow_attributes : require

#include "gmm.glsl"

const uint TOKENS = WORKGROUP_SIZE / TEAM;

shared vec4 mixtures[2 * WORKGROUP_SIZE];

uint at(const Place place, const uint token, const uint k) {
    return place.offset + token * place.stride_t + k * place.stride_k;
}

// component_of returns which component of its token an invocation has as number i.
uint component_of(const uint i) { return i * TEAM + gl_LocalInvocationIndex % TEAM; }

// Logit, mu and log_sigma of components whose loads are in flight at once: one after the other,
// each would wait for its own load.
const uint BATCH = 16 / TEAM;
vec3 batch[BATCH];

// load_batch loads the components of a token from number first on; past the last one it loads the
// last one again.
void load_batch(const uint token, const uint first) {
    [[unroll]] for (uint i = 0; i < BATCH; i++) {
        const uint k = min(component_of(first + i), p.components - 1);
        batch[i] = vec3(WIDEN(logit_in[at(p.logit, token, k)]), WIDEN(mu_in[at(p.mu, token, k)]),
                        WIDEN(log_sigma_in[at(p.log_sigma, token, k)]));
    }
}

// A mixture of no components has a joint of 0. joined is merge that allows such mixtures.
Mixture joined(const Mixture m, const Mixture n) {
    if (m.joint == 0.0 || n.joint == 0.0) {
        return m.joint == 0.0 ? n : m;
    }
    return merge(m, n);
}

// load_mixture returns the mixture of a token to all invocations that share it. Every invocation
// of the workgroup calls it.
Mixture load_mixture(const uint token, const float y) {
    const uint tid = gl_LocalInvocationIndex;
    Mixture m = Mixture(0.0, 0.0, 0.0, Density(0.0, 0.0, 0.0, 0.0));
    for (uint first = 0; component_of(first) < p.components; first += BATCH) {
        load_batch(token, first);
        [[unroll]] for (uint i = 0; i < BATCH; i++) {
            if (component_of(first + i) < p.components) {
                m = joined(m, alone(component(batch[i].x, batch[i].y, batch[i].z, y)));
            }
        }
    }
    [[unroll]] for (uint apart = 1; apart < TEAM; apart *= 2) {
        barrier();  // mixtures read before they are written again
        mixtures[2 * tid] = pack_first(m);
        mixtures[2 * tid + 1] = pack_second(m);
        barrier();  // mixtures written before they are read
        const uint other = tid ^ apart;
        const Mixture n = unpack(mixtures[2 * other], mixtures[2 * other + 1]);
        if (tid < other) {
            m = joined(m, n);
        } else {
            m = joined(n, m);  // the same bits
        }
    }
    return m;
}
