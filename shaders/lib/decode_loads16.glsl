// decode_loads16: the keys and values of a tile from a cache of 16 bits (lib/decode_operands.glsl).

// A page of 8 keys is half a tile: keys g and 2t, 2t+1 are of the first, the others of the second.
const uint HALVES = PAGE_SIZE == 8 ? 2 : 1;

// pages_of returns the pages of both halves of a tile.
uvec2 pages_of(const Part part, const uint tile) {
    if (PAGE_SIZE == 0) {
        return uvec2(part.cache);
    }
    const uint first = look_up(part, key_of(part, tile, 0));
    return uvec2(first, HALVES == 2 ? look_up(part, key_of(part, tile, 8)) : first);
}

// Words are a lane's 16 bytes of keys g and g + 8, or of its four keys of V, of a tile.
struct Keys {
    uvec4 at[2 * K_LOADS];
};

struct Values {
    uvec4 at[4 * V_LOADS];
};

// Lanes beyond a row load its start, so that no load is conditional, and take zeros.
void load_keys(const Part part, const uint tile, const uvec2 page, inout Keys k) {
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const uint at = p.k_offset + part.kv_head * p.k_stride_h + at_key(key_of(part, tile, lane_g() + 8 * i), page[i], p.k_stride_b, p.k_stride_s);
        [[unroll]] for (uint n = 0; n < K_LOADS; n++) {
            const uint col = n * 32 + lane_t() * 8;
            const bool has = HEAD_DIM % 32 == 0 || col < HEAD_DIM;
            const uvec4 x = load_k(at + (has ? col : 0), VEC);
            k.at[i * K_LOADS + n] = has ? x : uvec4(0);
        }
    }
}

uint value_column(const uint n) {
    return (column_part() * V_LOADS + n) * 64 + lane_g() * 8;
}

void load_values(const Part part, const uint tile, const uvec2 page, inout Values v) {
    [[unroll]] for (uint j = 0; j < 4; j++) {
        const uint at = p.v_offset + part.kv_head * p.v_stride_h + at_key(key_of(part, tile, value_key(j)), page[j / 2], p.v_stride_b, p.v_stride_s);
        [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
            const bool has = VALUE_DIM % (64 * COLUMN_PARTS) == 0 || value_column(n) < VALUE_DIM;
            const uvec4 x = load_v(at + (has ? value_column(n) : 0), VEC);
            v.at[j * V_LOADS + n] = has ? x : uvec4(0);
        }
    }
}
