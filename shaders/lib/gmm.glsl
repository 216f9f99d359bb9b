// gmm: the log-probability of a number y under a mixture of normal distributions, as a running
// state over the components. Neither large logits nor small deviations overflow or cancel.
//
//     w_k = exp(logit_k - max(logit))                          their sum: weights
//     z_k = (y - mu_k) * exp(-log_sigma_k)
//     q_k = z_k^2 / 2
//     a_k = logit_k - q_k - log_sigma_k                        the largest: a_best
//     log_p = a_best - max(logit) + log(sum of exp(a_k - a_best)) - log(weights) - log(2 pi) / 2
//
// Only the difference of two a is computed, term by term: an a with a q of 1e9 has no bits
// left for a logit. If both q are beyond float32, log|z| says which is less; the other is so
// much larger that its component does not count in the sum.

const float HALF_LOG_2PI = 0.91893853320467274;  // log(2 pi) / 2

// The terms of the density of y under a component.
struct Density {
    float logit;
    float q;
    float distance;  // log|z|, where q is infinite
    float log_sigma;
};

// One component.
struct Component {
    Density density;
    float z;
    float half_inverse;  // exp(-log_sigma / 2), of which the square may overflow alone
};

// Any components of a mixture.
struct Mixture {
    float max_logit;
    float weights;  // sum of exp(logit - max_logit)
    float joint;    // sum of exp(a - a_best), 1 at least
    Density best;
};

#define INFINITY uintBitsToFloat(0x7f800000u)  // glslang takes no call in a global constant

// over_sigma returns x / sigma. 0 is 0 whatever the deviation: 0 * inf would be NaN.
// Precise, or a compiler (NVIDIA's does) takes the product of the halves first, which overflows
// where x / sigma does not.
float over_sigma(const float x, const float half_inverse) {
    precise const float part = x * half_inverse;
    precise const float all = part * half_inverse;
    return x == 0.0 ? 0.0 : all;
}

Component component(const float logit, const float mu, const float log_sigma, const float y) {
    Component c;
    const float d = y - mu;
    c.half_inverse = exp(-0.5 * log_sigma);
    c.z = over_sigma(d, c.half_inverse);
    c.density.logit = logit;
    c.density.q = 0.5 * c.z * c.z;
    c.density.distance = c.density.q == INFINITY ? log(abs(d)) - log_sigma : 0.0;  // finite where z is not
    c.density.log_sigma = log_sigma;
    return c;
}

// log_ratio returns a_k of one component minus a_k of another. It is precise: Mesa would take
// another order, in which logits of 1e4 leave an error of 1e-3 in the other terms.
float log_ratio(const Density a, const Density b) {
    float excess = a.q - b.q;
    if (a.q == INFINITY && b.q == INFINITY) {  // inf - inf is NaN
        excess = a.distance == b.distance ? 0.0 : a.distance > b.distance ? INFINITY : -INFINITY;
    }
    if (abs(excess) == INFINITY) {  // whatever the logits: their difference may be infinite too
        return -excess;
    }
    precise const float ratio = a.logit - b.logit - excess - (a.log_sigma - b.log_sigma);
    return ratio;
}

Mixture alone(const Component c) { return Mixture(c.density.logit, 1.0, 1.0, c.density); }

Mixture merge(const Mixture m, const Mixture n) {
    Mixture all = m;
    if (n.max_logit > m.max_logit) {
        all.max_logit = n.max_logit;
        all.weights = m.weights * exp(m.max_logit - n.max_logit) + n.weights;
    } else {
        all.weights += n.weights * exp(n.max_logit - m.max_logit);
    }
    const float ratio = log_ratio(n.best, m.best);
    if (ratio > 0.0) {
        all.best = n.best;
        all.joint = m.joint * exp(-ratio) + n.joint;
    } else {
        all.joint += n.joint * exp(ratio);
    }
    return all;
}

// log_probability is precise for the same reason.
float log_probability(const Mixture m) {
    precise const float log_p = m.best.logit - m.max_logit - m.best.log_sigma - HALF_LOG_2PI + log(m.joint) - log(m.weights) - m.best.q;
    return log_p;
}

// A mixture in memory is two vec4.
Mixture unpack(const vec4 x, const vec4 y) {
    return Mixture(x.x, x.y, x.z, Density(x.w, y.x, y.y, y.z));
}

vec4 pack_first(const Mixture m) { return vec4(m.max_logit, m.weights, m.joint, m.best.logit); }
vec4 pack_second(const Mixture m) { return vec4(m.best.q, m.best.distance, m.best.log_sigma, 0.0); }
