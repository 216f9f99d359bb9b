// append_cache16: new keys and values go into a cache of their own format, keys rotated
// (attention_append.comp).

// append_k writes item number `item` of the new keys of a sequence with `keys` keys.
void append_k(const uint batch, const uint cache, const uint keys, const uint item) {
    const uint e = item % K_ITEMS;
    const uint head = item / K_ITEMS % p.kv_heads;
    const uint i = item / K_ITEMS / p.kv_heads;
    const Slot slot = slot_of(batch, cache, keys + i);
    if (!slot.found) {
        return;
    }
    const bool rotated = e < ROTATED_ITEMS;
    const uint column = rotated ? e * WIDTH : ROTARY + (e - ROTATED_ITEMS) * WIDTH;
    const uint from = HEAD_AT(new_k, batch, head) + i * p.new_k_stride_s + column;
    const uint to = HEAD_AT(k, slot.outer, head) + slot.inner * p.k_stride_s + column;
    uvec4 a = load_new_k(from, WIDTH);
    if (rotated && INTERLEAVED) {
        turn_neighbours(a, keys + i, column);
    } else if (rotated) {
        uvec4 b = load_new_k(from + ROTARY / 2, WIDTH);
        turn_halves(a, b, keys + i, column);
        store_k(to + ROTARY / 2, WIDTH, b);
    }
    store_k(to, WIDTH, a);
}

void append_v(const uint batch, const uint cache, const uint keys, const uint item) {
    const uint column = item % V_ITEMS * VEC;
    const uint head = item / V_ITEMS % p.kv_heads;
    const uint i = item / V_ITEMS / p.kv_heads;
    const Slot slot = slot_of(batch, cache, keys + i);
    if (slot.found) {
        const uint from = HEAD_AT(new_v, batch, head) + i * p.new_v_stride_s + column;
        store_v(HEAD_AT(v, slot.outer, head) + slot.inner * p.v_stride_s + column, VEC, load_new_v(from, VEC));
    }
}
