// decode_append_queries: the rotation of Q in a step (lib/decode_append.glsl). A row consists of words of
// VEC elements; a word has its partners in another one, or with INTERLEAVED in itself.

const uint WIDTH = VEC;
const uint ANGLES = ROTARY == 0 ? 1 : ROTARY / 2;  // of a position

#include "append_rotate.glsl"

// appends reports whether the part's sequence has room for the new keys. Otherwise it stays as it is,
// with its queries.
bool appends(const Part part) {
    const bool room = seq_lens[p.seq_lens_offset + part.batch] == part.sequence.keys - p.new_keys;
    return room && (!BATCH_IDX || uint(batch_idx[p.batch_idx_offset + part.batch]) < p.pages);
}

uint position_of(const Part part, const uint r) {
    return uint(max(part.sequence.keys - int(p.seq_q) + int(query_of(part.row0 + r)), 0));
}

uint partner_column(const uint column) {
    if (INTERLEAVED || column >= ROTARY) {
        return column;
    }
    return column < ANGLES ? column + ANGLES : column - ANGLES;
}

// turned returns a word of a position, given its partners.
uvec4 turned(uvec4 word, uvec4 partners, const uint position, const uint column) {
    if (column >= ROTARY) {
        return word;
    }
    if (INTERLEAVED) {
        turn_neighbours(word, position, column);
    } else if (column < ANGLES) {
        turn_halves(word, partners, position, column);
    } else {
        turn_halves(partners, word, position, column - ANGLES);
    }
    return word;
}

// LOAD_QUERY returns the word of Q at a column of row number r of the part, rotated. `at` is where the
// row is.
#define LOAD_QUERY(part, r, at, column) load_query(part, r, at, column)
uvec4 load_query(const Part part, const uint r, const uint at, const uint column) {
    const uvec4 word = load_q(at + column, VEC);
    if (column >= ROTARY || !appends(part)) {
        return word;
    }
    return turned(word, load_q(at + partner_column(column), VEC), position_of(part, r), column);
}
