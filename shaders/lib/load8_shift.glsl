// load8_shift: eight consecutive 16-bit elements that start anywhere, from the one
// or two aligned uvec4 that hold them.
//
// If rows start at odd elements, loads of 16 bytes are not aligned, and loads of one element
// are eight times as many. This takes two loads, mostly of lines that are already in the
// cache, and some 15 operations.

// shift8 returns elements first..first+7 of the sixteen in lo and hi; first < 8.
uvec4 shift8(const uvec4 lo, const uvec4 hi, const uint first) {
    const bool by4 = (first & 4) != 0;
    const bool by2 = (first & 2) != 0;
    const bool by1 = (first & 1) != 0;
    // Words 0..7 of both, shifted by two words, by one, and by half a word.
    const uvec4 a = by4 ? uvec4(lo.zw, hi.xy) : lo;
    const uvec2 b = by4 ? hi.zw : hi.xy;
    const uvec4 c = by2 ? uvec4(a.yzw, b.x) : a;
    const uint d = by2 ? b.y : b.x;
    return by1 ? c >> 16 | uvec4(c.yzw, d) << 16 : c;
}

// keep8 returns the first n of eight elements, and zeros.
uvec4 keep8(const uvec4 x, const int n) {
    const ivec4 left = n - ivec4(0, 2, 4, 6);  // of each word
    const uvec4 kept = mix(mix(uvec4(0), uvec4(0xffffu), equal(left, ivec4(1))), uvec4(~0u), greaterThan(left, ivec4(1)));
    return x & kept;
}

// DEFINE_LINE8(name, vec8) makes `uvec4 name(uint line, uint col, uint len)`, elements
// col..col+7 of the line of len elements that begins at element `line` of `uvec4 vec8[]`;
// those past its end are 0. col < len.
#define DEFINE_LINE8(name, vec8)                                                             \
    uvec4 name(const uint line, const uint col, const uint len) {                            \
        const uint first = line + col;                                                       \
        const uint last = line + min(col + 7, len - 1);                                      \
        return keep8(shift8(vec8[first >> 3], vec8[last >> 3], first & 7), int(len - col));  \
    }
