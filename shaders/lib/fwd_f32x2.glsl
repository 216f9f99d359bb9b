// fwd_f32x2: fused attention forward of float32 tensors on matrices of float16, with
// the errors of float32.
//
// The walk over the keys is lib/fwd_matrix.glsl's, with its own parts of forward():
//
//     lib/fwd_f32x2_q.glsl       Q as parts, of an exponent for each row
//     lib/fwd_f32x2_scores.glsl  S, and what makes it base-2 logits
//     lib/fwd_f32x2_values.glsl  P, and O += P V
//
// Every operand is the sum of two float16, hi + lo (lib/f32x2.glsl), and a product is three:
//
//     x * y = hi*hi + (hi*lo + lo*hi) + lo*lo
//                                       ----- left out
//
// Products of float16 are exact in float32. The errors of one term, relative to
// |x| * |y|, u = 2^-24 the unit roundoff of float32:
//
//     x, y as parts   2u each at most, u/2 on average
//     lo*lo           2^-22 = 4u at most, u/2 on average; of random sign
//     sum             as float32 sums, but of MAT_N terms at a time
//
// A plain program adds head_dim (or seq_kv) terms one by one and errs by about sqrt(head_dim) * u
// of the same norm, so that ours are hidden in it; only a row that has all its weight on one key
// shows that its V is right to 2u and not exact. Two things would not be hidden:
//
//   - Matrix units may cut off a sum's last bit where float32 arithmetic rounds
//     it (Fasi et al., Numerical behavior of NVIDIA tensor cores, 2021). Cuts
//     do not cancel: over thousands of keys they would add up. So O gets the
//     sum of each key tile by a float32 addition. The small products, hi*lo +
//     lo*hi, never meet a sum of the large ones more often than that either.
//     Weights that are equal, as behind a softcap, are cut in the same direction
//     by a rounding, too: l gets their sum of each key tile, as O does.
//   - The range of float16. Each row of Q, each key tile of K and of V has a
//     power of two of its own, which is exact: the scale of S undoes the powers of
//     Q and K, the addition of a tile's sum to O the power of V. P is
//     computed relative to 2^-HEADROOM of the row's maximum, so that the
//     largest weights lie high in float16's range: weights are right to 2^-32
//     of the largest.
//
// What is not as in float32: an element of V or K that is below 2^-16 of the largest of its key
// tile, or of Q of its row, is right to 2^-39 of that largest instead of relatively; and O
// overflows like a float32 sum of P * V before the division by the sum of P, P at most 1.

#include "tile_f32x2.glsl"

// m is log2 of the scale that O and l are relative to: a row's maximum at the
// last rescale less HEADROOM. A row is rescaled when it has grown by more than
// RESCALE_THRESHOLD beyond that maximum, so P <= 2^15.
const float HEADROOM = 7.0;
const uint P_TOP = 15;
const float P_UNIT = float(1u << P_TOP);

#define FOLD(i) fold_scores(row_exponent[i] + int(exponents.x) - int(FLOAT_BIAS), scale_mantissa)

// m_shift undoes in the end that l and O are in units of P / 2^P_TOP.
float m_shift(const uint q_at, const uint row) { return float(P_TOP); }

// fold_scores returns 2^exponent * mantissa, what S is multiplied by to be a
// base-2 logit. It is never 0, as a hidden key has S = -inf.
float fold_scores(const int exponent, const float mantissa) {
    return uintBitsToFloat(uint(clamp(exponent + int(FLOAT_BIAS), 1, 254)) << 23) * mantissa;
}

// fold_values returns what the sum over a tile of V with this exponent is multiplied by when it is
// added to O. O is kept in units of V * P / 2^P_TOP, in which no weight is above 1.
float fold_values(const uint exponent) { return uintBitsToFloat((exponent - TOP - P_TOP) << 23); }
