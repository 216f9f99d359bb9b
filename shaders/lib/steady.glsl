// steady: a walk over keys relative to a maximum that stays, for bfloat16 (lib/fwd_matrix.glsl,
// STEADY).
//
// Tiles without a mask are walked relative to the maximum of each row's first MAT_N scores:
// weights have the exponents of float32, and are as exact relative to an old maximum as to the
// row's. Nothing branches in a tile then, and the compiler puts exponentials between products.
// Where l reaches 2^96 or O overflows, which takes a score that is greater than those by about 96 in
// base 2, the workgroup begins again and walks as it does with a mask.

// With fewer keys it takes longer to find the maximum than it saves.
const int STEADY_KEYS = 256;

// steady_end returns up to which key the walk from first_key on keeps its maximum,
// if all rows of the block see all keys up to full_end.
int steady_end(const int first_key, const int full_end) {
    return full_end - first_key >= STEADY_KEYS ? full_end : first_key;
}

// row_maxima returns the maxima of the rows of x, as reduce does. Every invocation of
// the subgroup calls it.
MatC row_maxima(const MatC x) {
    MatC top = x;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        float y = x[i * ROW_RUN];
        [[unroll]] for (uint e = 1; e < ROW_RUN; e++) {
            y = max(y, x[i * ROW_RUN + e]);
        }
        top[i] = y;
    }
    return reduce(top, false);
}

// is_steady_sum reports whether an invocation's share of l is below 2^96. Of a row whose l is above
// 2^126, 1/l is no normal float32, and a device may take 1/l to be 0; sums of splits overflow at 2^128.
// A NaN is not below.
bool is_steady_sum(const float l) { return floatBitsToUint(l) < 0x6f800000u; }

// is_finite asks the bits: Vulkan lets a compiler take isnan to be false.
bool is_finite(const float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }

// short_nan returns x, or if x is a quiet NaN one whose lower bits are 0.
float short_nan(const float x) { return is_finite(x) ? x : uintBitsToFloat(floatBitsToUint(x) & 0xffc00000u); }

// short_to_left is to_left(x, false) of short_nan: without a test for NaN it takes a third of the operations.
MatA short_to_left(const MatC x) {
    if (!SAME_LAYOUT) {
        return to_left(x, false);
    }
    MatA result;
    [[unroll]] for (uint i = 0; i < LENGTH; i += 2) {
        const uvec2 bits = uvec2(floatBitsToUint(x[i]), floatBitsToUint(x[i + 1]));
        const uvec2 rounded = bits + 0x7fffu + (bits >> 16 & 1u);
        const uint both = rounded.x >> 16 | rounded.y & 0xffff0000u;
        result[i] = uintBitsToBFloat16EXT(uint16_t(both));
        result[i + 1] = uintBitsToBFloat16EXT(uint16_t(both >> 16));
    }
    return result;
}

// any_of_workgroup reports whether x is true for any invocation. It writes the padding
// after the first row of K. Every invocation of the workgroup calls it.
bool any_of_workgroup(const bool x) {
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        tile[ROW8].x = 0;
    }
    barrier();
    if (x) {
        atomicOr(tile[ROW8].x, 1);
    }
    barrier();
    return tile[ROW8].x != 0;
}
