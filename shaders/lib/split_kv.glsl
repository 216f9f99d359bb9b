// split_kv: the keys of a block of rows, divided among p.splits workgroups.
//
// A problem with few blocks of rows and many keys would leave most of a device idle. With
// SPLIT_KV each workgroup walks over its split of a block's key tiles and writes the state of
// each row in float32,
//
//     m  maximum of the scores of the split, base 2, or a bit less (fwd_matrix.glsl)
//     l  sum of exp2(S - m)
//     O  sum of exp2(S - m) * V
//
// to row split * seq_q + row of O and LSE, where a row of LSE is the pair (m, l).
// attention_combine.comp combines them. The idea is Flash-Decoding's (Dao et al., 2023).
//
// The includer declares `const bool SPLIT_KV`, `const uint BLOCK_N`, the push
// constants p and lse_out, and includes lib/softmax.glsl.

// split_first returns the first key of a split of a block's keys, 0 to
// keys-1, a multiple of BLOCK_N below seq_kv. Splits are whole tiles and differ by
// one at most; where there are fewer tiles than splits, the last ones are empty.
int split_first(const uint split, const int keys) {
    if (!SPLIT_KV) {
        return 0;
    }
    const uint tiles = (uint(max(keys, 0)) + BLOCK_N - 1) / BLOCK_N;
    const uint first = split * (tiles / p.splits) + min(split, tiles % p.splits);
    return first < tiles ? int(first * BLOCK_N) : 0;
}

// split_end returns the end of that part; if the part is empty, it is at most split_first.
int split_end(const uint split, const int keys) {
    if (!SPLIT_KV) {
        return keys;
    }
    const uint tiles = (uint(max(keys, 0)) + BLOCK_N - 1) / BLOCK_N;
    const uint first = split * (tiles / p.splits) + min(split, tiles % p.splits);
    const uint size = tiles / p.splits + (split < tiles % p.splits ? 1 : 0);
    return size == 0 ? 0 : min(int((first + size) * BLOCK_N), keys);
}

// put_lse writes the m and l of a row, or its LSE without SPLIT_KV, to element `at` of lse_out.
void put_lse(const uint at, const float m, const float l) {
    if (SPLIT_KV) {
        lse_out[at] = m;
        lse_out[at + 1] = l;
    } else {
        lse_out[at] = lse(m, l);
    }
}
