// decode_append: attention_append in the workgroups that read what it writes (attention_decode.comp).
//
//     position of new key i of sequence b   = seq_lens[b] + i
//     new_k, new_v                          as in attention_append.comp
//     q                                     rotated in place
//
// A unit is all rows of a key head. So a tile has one reader, and the reader writes the new keys
// in its tiles: no workgroup waits for another. Q has several readers: the last of them to finish
// rotates it.

const uint K_WORDS = HEAD_DIM / VEC;
const uint V_WORDS = VALUE_DIM / VEC;

// tile_of returns the tile in whose workgroup a key is written: its own, or the first that somebody reads.
uint tile_of(const Part part, const uint key) { return max(key / TILE, part.sequence.first); }

// next_tile returns the first tile of the workgroup from a tile on, if it has one.
uint next_tile(const Part part, const uint tile) {
    const uint n = tile > part.first ? tile - part.first : 0;
    return part.first + (n + apart() - 1) / apart() * apart();
}

bool has_tile(const Part part, const uint tile) { return ALONE || tile < part.first + part.tiles; }

// append_word writes word number i of the new keys and values of the part.
void append_word(const Part part, const uint i) {
    const uint n = i / (K_WORDS + V_WORDS);
    const uint word = i % (K_WORDS + V_WORDS);
    const uint key = uint(part.sequence.keys - p.new_keys) + n;
    const uint tile = tile_of(part, key);
    if (next_tile(part, tile) != tile || !has_tile(part, tile)) {
        return;
    }
    uint outer = part.cache;
    if (PAGE_SIZE > 0) {
        outer = uint(block_table[p.block_table_offset + part.batch * p.block_table_stride_b + key / PAGE_SIZE]);
        if (outer >= p.pages) {
            found_bad |= BAD_PAGE;
            return;
        }
    }
    const uint inner = PAGE_SIZE > 0 ? key % PAGE_SIZE : key;
    if (word < K_WORDS) {
        const uint column = word * VEC;
        const uint from = HEAD_AT(new_k, part.batch, part.kv_head) + n * p.new_k_stride_s;
        uvec4 x = load_new_k(from + column, VEC);
        if (column < ROTARY) {
            x = turned(x, load_new_k(from + partner_column(column), VEC), key, column);
        }
        store_k(HEAD_AT(k, outer, part.kv_head) + inner * p.k_stride_s + column, VEC, x);
    } else {
        const uint column = (word - K_WORDS) * VEC;
        const uint from = HEAD_AT(new_v, part.batch, part.kv_head) + n * p.new_v_stride_s;
        store_v(HEAD_AT(v, outer, part.kv_head) + inner * p.v_stride_s + column, VEC, load_new_v(from + column, VEC));
    }
}

// append_keys writes the new keys in tiles of the workgroup. It returns whether the stripe's first
// tile has any, so that what was loaded of it before is old. The whole workgroup calls it.
bool append_keys(const Part part) {
    const uint keys = uint(part.sequence.keys);
    const uint from = tile_of(part, keys - uint(p.new_keys));
    const uint to = tile_of(part, keys - 1);
    const uint tile = next_tile(part, from);
    if (tile > to || !has_tile(part, tile) || !appends(part)) {
        return false;
    }
    for (uint i = gl_LocalInvocationIndex; i < uint(p.new_keys) * (K_WORDS + V_WORDS); i += WORKGROUP_SIZE) {
        append_word(part, i);
    }
#ifdef MATRIX
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
#else
    groupMemoryBarrier();
    barrier();  // they are written
#endif
    const uint first = part.first + stripe() * apart();
    return first >= from && first <= to;
}

// put_queries writes the rotated Q, in the last of the workgroups that read it. The whole workgroup
// calls it after the sums of the part.
void put_queries(const Part part) {
    if (ROTARY == 0 || part.shared_by > 1 && !is_last || !appends(part)) {
        return;
    }
#ifdef MATRIX
    for (uint i = gl_LocalInvocationIndex; i < Q_WORDS; i += WORKGROUP_SIZE) {
        if (WORD_ROW(i) < rows_of(part) && WORD_COLUMN(i) < ROTARY) {
            store_q(q_at(part, WORD_ROW(i)) + WORD_COLUMN(i), VEC, q_rows[i]);
        }
    }
#else
    const uint words = (INTERLEAVED ? ROTARY : ROTARY / 2) / VEC;  // and their partners
    for (uint i = gl_LocalInvocationIndex; i < rows_of(part) * words; i += WORKGROUP_SIZE) {
        const uint r = i / words;
        const uint column = i % words * VEC;
        const uint at = q_at(part, r);
        uvec4 a = load_q(at + column, VEC);
        if (INTERLEAVED) {
            turn_neighbours(a, position_of(part, r), column);
        } else {
            uvec4 b = load_q(at + column + ANGLES, VEC);
            turn_halves(a, b, position_of(part, r), column);
            store_q(at + column + ANGLES, VEC, b);
        }
        store_q(at + column, VEC, a);
    }
#endif
}

#ifdef MATRIX
#define TURN_AHEAD(part, ahead) turn_ahead(part, ahead);
#else
#define TURN_AHEAD(part, ahead)
#endif
#define APPEND_KEYS(part, ahead)  \
    if (append_keys(part)) {      \
        load_ahead(part, ahead);  \
    }                             \
    TURN_AHEAD(part, ahead)
#define PUT_QUERIES(part) put_queries(part);
