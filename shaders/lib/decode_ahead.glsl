// decode_ahead: what a part loads before anything else is known, on matrices with a cache of 16 bits
// (lib/decode_matrix.glsl; lib/decode_no_ahead.glsl stands for it in all others).

#include "decode_operands.glsl"

// Ahead is what a part begins with: Q, and a stripe's first keys and values.
struct Ahead {
    uvec4 q[Q_LOADS];
#ifdef APPEND
    uvec4 partners[Q_LOADS];
#endif
    Keys k;
    Values v;
};

#ifdef APPEND
// load_partner_word returns the partners of word number i of q_rows.
uvec4 load_partner_word(const Part part, const uint i) {
    const uint column = WORD_COLUMN(i);
    return column < ROTARY ? load_q(q_at(part, WORD_ROW(i)) + partner_column(column), VEC) : uvec4(0);
}

void turn_ahead(const Part part, inout Ahead ahead) {
    if (ROTARY == 0 || !appends(part)) {
        return;
    }
    [[unroll]] for (uint n = 0; n < Q_LOADS; n++) {
        const uint i = n * WORKGROUP_SIZE + gl_LocalInvocationIndex;
        if (i < Q_WORDS) {
            ahead.q[n] = turned(ahead.q[n], ahead.partners[n], position_of(part, WORD_ROW(i)), WORD_COLUMN(i));
        }
    }
}
#endif

// load_ahead loads it. Where workgroups are ALONE, any tile is one that it may load.
void load_ahead(const Part part, inout Ahead ahead) {
    [[unroll]] for (uint n = 0; n < Q_LOADS; n++) {
        ahead.q[n] = load_q_word(part, min(n * WORKGROUP_SIZE + gl_LocalInvocationIndex, Q_WORDS - 1));
#ifdef APPEND
        ahead.partners[n] = load_partner_word(part, min(n * WORKGROUP_SIZE + gl_LocalInvocationIndex, Q_WORDS - 1));
#endif
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
