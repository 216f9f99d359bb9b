// activation: silu and both forms of gelu, with their derivatives.
//
// The includer declares the constants SILU, GELU and GELU_TANH, and ACTIVATION, which is one of them.

// normal_tail returns the normal distribution function at -x for x from 0 on, given exp(-x^2 / 2).
// The ratio of both is P(w) / (x + k) with w = (x - k) / (x + k), k = 5/2 and P a polynomial that
// interpolates at Chebyshev's points for x up to 14.5, from where on the power is 0 in float32. P is
// off by a relative 2e-8. With a division that is right to 2.5 units in the last place, the ratio is
// right to a relative 2^-20.
vec4 normal_tail(const vec4 x, const vec4 power) {
    const vec4 q = 1.0 / (x + 2.5);
    const vec4 w = (x - 2.5) * q;
    vec4 s = vec4(-0.000158118826);
    s = s * w - 0.000313274941;
    s = s * w + 0.00068351184;
    s = s * w + 0.0025255261;
    s = s * w - 0.0015996882;
    s = s * w - 0.0163866673;
    s = s * w + 0.00923553761;
    s = s * w + 0.13198702;
    s = s * w - 0.433691978;
    s = s * w + 0.706656635;
    return power * (s * q);
}

// sigmoids returns s = 1 / (1 + exp(-x)), and in rest 1 - s, which a subtraction would not leave
// right where s is near 1: x * (1 - s) would be wrong for a large x. The exponential may overflow.
vec4 sigmoids(const vec4 x, out vec4 rest) {
    const vec4 e = exp(-x);
    const vec4 s = 1.0 / (1.0 + e);
    rest = min(e, 3e38) * s;  // where e is infinite s is 0, and so is every product with it
    return s;
}

// An activation and its derivative.
struct Activated {
    vec4 value, slope;
};

// activated returns a(x) = x * s(x) and a'(x) = s(x) + x * s'(x). For s and s' of GELU x is
// clamped to -16..16: beyond, s is 0 or 1 and s' is 0 in float32, where x^3 may be infinite.
Activated activated(const vec4 x) {
    vec4 rest;
    if (ACTIVATION == SILU) {
        const vec4 s = sigmoids(x, rest);
        return Activated(x * s, s * (1.0 + x * rest));
    }
    const vec4 b = clamp(x, -16.0, 16.0);
    const vec4 square = b * b;
    if (ACTIVATION == GELU) {
        const vec4 power = exp(-0.5 * square);  // the density is power / sqrt(2 * pi)
        const vec4 tail = normal_tail(abs(b), power);
        const vec4 s = mix(1.0 - tail, tail, lessThan(b, vec4(0.0)));
        return Activated(x * s, s + b * (0.3989422804 * power));
    }
    // (1 + tanh(z)) / 2 is sigmoid(2 z), here with 2 z = 2 * sqrt(2 / pi) * (x + 0.044715 * x^3).
    // Its derivative is s * rest * 2 z'. The sum is s times a factor, as a compiler may multiply in another
    // order: s * rest is s * s * exp(-2 z), and s * s is 0 where s is below 2^-63.
    const vec4 s = sigmoids(b * (1.595769122 + 0.07135481627 * square), rest);
    return Activated(x * s, s * (1.0 + b * rest * (1.595769122 + 0.2140644488 * square)));
}
