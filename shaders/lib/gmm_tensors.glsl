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

Component load_component(const uint token, const uint k, const float y) {
    return component(WIDEN(logit_in[at(p.logit, token, k)]), WIDEN(mu_in[at(p.mu, token, k)]),
                     WIDEN(log_sigma_in[at(p.log_sigma, token, k)]), y);
}

Mixture load_mixture(const uint token, const float y) {
    Mixture m = alone(load_component(token, 0, y));
    for (uint k = 1; k < p.components; k++) {
        m = merge(m, alone(load_component(token, k, y)));
    }
    return m;
}

#endif
