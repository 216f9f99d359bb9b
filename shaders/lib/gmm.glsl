// gmm: the log-probability of one token under a mixture of normal distributions, as a
// kernel keeps it, so that neither large logits nor small deviations overflow or cancel.
//
//     w_k = exp(logit_k - max(logit))              their sum: weights
//     z_k = (y - mu_k) * exp(-log_sigma_k)
//     q_k = z_k^2 / 2                              the least: min_q
//     a_k = logit_k - max(logit) - (q_k - min_q) - log_sigma_k - log(2 pi) / 2
//     log_p = logsumexp(a) - min_q - log(weights)
//
// Where every q_k is beyond float32, log|z_k| says which is the least, and the others are
// so much larger that they have no part in the sum.
//
// The includer includes lib/element.glsl first and declares struct Place, which says where
// a tensor lies; `p` with components and a Place for each of logit, mu and log_sigma; and
// buffers logit_in, mu_in and log_sigma_in of ELEM.
#ifndef LIB_GMM_GLSL
#define LIB_GMM_GLSL

const float HALF_LOG_2PI = 0.91893853320467274;  // log(2 pi) / 2

// What all components of a token share.
struct Mixture {
    float max_logit;
    float weights;   // sum of exp(logit - max_logit)
    float min_q;     // inf if all are beyond float32
    float distance;  // the least log|z|, where min_q is infinite
    float max_a;
    float joint;  // sum of exp(a - max_a), 1 at least
};

// One component.
struct Component {
    float logit;  // less max_logit
    float z;
    float half_inverse;  // exp(-log_sigma / 2), of which the square may overflow alone
    float a;
};

#define INFINITY uintBitsToFloat(0x7f800000u)  // glslang takes no call in a global constant

uint at(const Place place, const uint token, const uint k) {
    return place.offset + token * place.stride_t + k * place.stride_k;
}

float load_logit(const uint token, const uint k) {
    return WIDEN(logit_in[at(p.logit, token, k)]);
}

float load_mu(const uint token, const uint k) {
    return WIDEN(mu_in[at(p.mu, token, k)]);
}

float load_log_sigma(const uint token, const uint k) {
    return WIDEN(log_sigma_in[at(p.log_sigma, token, k)]);
}

// half_inverse returns exp(-log_sigma / 2).
float half_inverse(const float log_sigma) {
    return exp(-0.5 * log_sigma);
}

// over_sigma returns x / sigma. 0 is 0 whatever the deviation: 0 * inf would be NaN.
// Precise, or a compiler (NVIDIA's does) takes the product of the halves first, which overflows
// where x / sigma does not.
float over_sigma(const float x, const float half_inverse) {
    precise const float part = x * half_inverse;
    precise const float all = part * half_inverse;
    return x == 0.0 ? 0.0 : all;
}

// log_distance returns log|z|, which is finite where z is not.
float log_distance(const float d, const float log_sigma) {
    return log(abs(d)) - log_sigma;
}

// component returns component k, given all of m but the sums.
Component component(const uint token, const uint k, const float y, const Mixture m) {
    Component c;
    const float d = y - load_mu(token, k);
    const float log_sigma = load_log_sigma(token, k);
    c.logit = load_logit(token, k) - m.max_logit;
    c.half_inverse = half_inverse(log_sigma);
    c.z = over_sigma(d, c.half_inverse);
    float excess = 0.5 * c.z * c.z - m.min_q;
    if (m.min_q == INFINITY) {  // inf - inf is NaN
        excess = log_distance(d, log_sigma) <= m.distance ? 0.0 : INFINITY;
    }
    c.a = c.logit - excess - log_sigma - HALF_LOG_2PI;
    return c;
}

Mixture mixture(const uint token, const float y) {
    Mixture m;
    m.max_logit = load_logit(token, 0);
    m.min_q = INFINITY;
    m.distance = INFINITY;
    for (uint k = 0; k < p.components; k++) {
        const float d = y - load_mu(token, k);
        const float log_sigma = load_log_sigma(token, k);
        const float z = over_sigma(d, half_inverse(log_sigma));
        m.max_logit = max(m.max_logit, load_logit(token, k));
        m.min_q = min(m.min_q, 0.5 * z * z);
        if (m.min_q == INFINITY) {
            m.distance = min(m.distance, log_distance(d, log_sigma));
        }
    }
    m.weights = 0.0;
    m.max_a = -INFINITY;
    m.joint = 0.0;
    for (uint k = 0; k < p.components; k++) {
        const Component c = component(token, k, y, m);
        m.weights += exp(c.logit);
        if (c.a > m.max_a) {
            m.joint = m.joint * exp(m.max_a - c.a) + 1.0;  // 0 * exp(-inf) the first time
            m.max_a = c.a;
        } else if (c.a > -INFINITY) {  // -inf - -inf is NaN
            m.joint += exp(c.a - m.max_a);
        }
    }
    return m;
}

#endif
