// to_e4m3: float to the nearest e4m3 number (dtype.E4M3), ties to even, as its bits: 448 for what
// is beyond.

uint to_e4m3(const float x) {
    const uint bits = floatBitsToUint(x);
    const uint magnitude = bits & 0x7fffffffu;
    uint b;
    if (magnitude > 0x7f800000u) {
        b = 0x7fu;  // NaN
    } else if (magnitude >= 0x43e00000u) {
        b = 0x7eu;  // 448
    } else if (magnitude >= 0x3c800000u) {
        b = (magnitude - (120u << 23) + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;  // exponent bias 127 to 7
    } else {
        // Subnormal: the last kept bit, 2^-9, is the last bit of a float in [2^14, 2^15), so
        // this addition rounds.
        precise const float y = uintBitsToFloat(magnitude) + 16384.0;
        b = floatBitsToUint(y) - 0x46800000u;
    }
    return bits >> 24 & 0x80u | b;
}
