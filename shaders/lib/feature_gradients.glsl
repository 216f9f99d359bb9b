// feature_gradients: the gradients of scores with features.

#include "features.glsl"
#include "dropout.glsl"

#ifdef FEATURES

// The contribution of a row and a key to gradients, all 0 if the row does not see the key. Z is
// 0 if dropout drops the weight, else keep_scale().
struct Weighed {
    float P;   // the weight, 0 if it is dropped: P * Z / keep_scale()
    float dS;  // P * (dP * Z - Delta), the gradient of the score and of the bias
    float dX;  // the same of the score before Softcap
};

// softcap_slope returns the derivative of Softcap at a base-2 logit x, by it,
//
//     1 - tanh(y)^2 = 4 t / (1 + t)^2
//
// with y and t of softcap.
float softcap_slope(const float x) {
    const float t = exp2(-abs(x) * args.features.softcap_in);
    return 4.0 * t / ((1.0 + t) * (1.0 + t));
}

// weigh returns the contribution of a row and a key of the block. s is the dot product of Q and
// K, dP the product of dO and V, and lse2_delta belongs to the row. `seen` says whether the masks show
// the key to the row, `keep` whether dropout keeps the weight. If not seen, row and key may be
// outside the sequence.
Weighed weigh(const Block b, const float s, const float dP, const vec2 lse2_delta, const int row, const int key, const bool seen, const bool keep) {
    const float x = score(b, s, args.plain.scale_log2, row, key, seen);
    const bool hidden = x == NEG_INF;  // K and V may be NaN
    const float P = exp2(x - lse2_delta.x);
    const float dS = hidden ? 0.0 : P * ((keep ? dP * keep_scale() : 0.0) - lse2_delta.y);
    const float slope = SOFTCAP && !hidden ? softcap_slope(s * args.plain.scale_log2) : 1.0;
    return Weighed(keep ? P : 0.0, dS, dS * slope);
}
#endif
