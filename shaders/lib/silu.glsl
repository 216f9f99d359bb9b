// silu: silu(x) = x * sigmoid(x) and its derivative.

vec4 sigmoid(const vec4 x) {
    return 1.0 / (1.0 + exp(-x));  // exp may overflow: 1 / inf is the right 0
}

vec4 silu(const vec4 x) { return x * sigmoid(x); }

// dsilu returns s * (1 + x * (1 - s)) for s = sigmoid(x), the derivative of silu.
vec4 dsilu(const vec4 x) {
    const vec4 s = sigmoid(x);
    return s * (1.0 + x * (1.0 - s));
}
