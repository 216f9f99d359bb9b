// gmm_tensors: the mixtures of lib/gmm.glsl in tensors (tokens, components).
//
// The includer includes lib/element.glsl first and declares struct Place, which says where
// a tensor lies; `p` with components and a Place for each of logit, mu and log_sigma; and
// buffers logit_in, mu_in and log_sigma_in of ELEM.
#ifndef LIB_GMM_TENSORS_GLSL
#define LIB_GMM_TENSORS_GLSL

#include "gmm.glsl"

uint at(const Place place, const uint token, const uint k) {
    return place.offset + token * place.stride_t + k * place.stride_k;
}

// Components whose loads are on their way at once: one after the other, each would wait
// for its own.
const uint BATCH = 8;

// LOAD_BATCH(batch, token, first) declares vec3 batch[BATCH], which holds logit, mu and
// log_sigma of the components of a token from first on, the last one repeated.
#define LOAD_BATCH(batch, token, first)                                                       \
    vec3 batch[BATCH];                                                                        \
    [[unroll]] for (uint i = 0; i < BATCH; i++) {                                             \
        const uint k = min(first + i, p.components - 1);                                      \
        batch[i] = vec3(WIDEN(logit_in[at(p.logit, token, k)]), WIDEN(mu_in[at(p.mu, token, k)]), \
                        WIDEN(log_sigma_in[at(p.log_sigma, token, k)]));                      \
    }

Mixture load_mixture(const uint token, const float y) {
    Mixture m;
    for (uint first = 0; first < p.components; first += BATCH) {
        LOAD_BATCH(batch, token, first)
        [[unroll]] for (uint i = 0; i < BATCH; i++) {
            if (first + i < p.components) {
                const Mixture n = alone(component(batch[i].x, batch[i].y, batch[i].z, y));
                if (first + i == 0) {
                    m = n;
                } else {
                    m = merge(m, n);
                }
            }
        }
    }
    return m;
}

#endif
