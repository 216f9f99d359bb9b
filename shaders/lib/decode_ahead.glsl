// decode_ahead: what a part loads before anything else is known, on matrices with a cache of 16 bits
// (lib/decode_matrix.glsl; lib/decode_no_ahead.glsl is that of all others).
#ifndef LIB_DECODE_AHEAD_GLSL
#define LIB_DECODE_AHEAD_GLSL

#include "decode_operands.glsl"

// Ahead is what a part begins with: Q, and a stripe's first keys and values.
struct Ahead {
    uvec4 q[Q_LOADS];
    Keys k;
    Values v;
};

// load_ahead loads it. Where workgroups are ALONE, any tile is one that it may load.
void load_ahead(const Part part, inout Ahead ahead) {
    [[unroll]] for (uint n = 0; n < Q_LOADS; n++) {
        ahead.q[n] = load_q_word(part, min(n * WORKGROUP_SIZE + gl_LocalInvocationIndex, Q_WORDS - 1));
    }
    const uint tile = part.first + stripe() * apart();
    if (ALONE && !WINDOW && !LEFT_PAD || tile < part.last) {
        const uvec2 pages = pages_of(part, tile);
        load_keys(part, tile, pages, ahead.k);
        load_values(part, tile, pages, ahead.v);
    }
}

// check_ahead reports the pages of the first tile that are none.
void check_ahead(const Part part) {
    const uint tile = part.first + stripe() * apart();
    if (PAGE_SIZE > 0 && tile < part.last) {
        pages_of(part, tile);
    }
}

#endif
