// softmax: constants of the online softmax in base 2.
//
//     exp(x - max) = exp2(x * LOG2_E - max * LOG2_E)
//
// Scores are kept unscaled; scale_log2 = Scale * LOG2_E is applied inside the exponential,
// with one fused multiply-add per score. Scale > 0 here: a negative scale flips the sign of Q
// when Q is loaded.

const float LN_2 = 0.6931471805599453;  // log(x) = log2(x) * LN_2

const float NEG_INF = -1.0 / 0.0;  // the score of a hidden key: exp2 gives exactly 0

// The running maximum of a row that has seen no key. Finite, because
// -inf - -inf is NaN; so low that any real score is above it.
const float MAX_INIT = -1.7e38;  // about -FLT_MAX/2

// lse returns log(sum(exp(S))) of a row from its base-2 maximum m and its sum
// l of exp2(S - m). A row that saw no key has l = 0.
float lse(const float m, const float l) { return l > 0.0 ? (m + log2(l)) * LN_2 : NEG_INF; }

// inverse_sum returns 1/l, and 0 for a row that saw no key, whose O is 0.
float inverse_sum(const float l) { return l > 0.0 ? 1.0 / l : 0.0; }
