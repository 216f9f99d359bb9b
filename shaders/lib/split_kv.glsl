// split_kv: the keys of a block of rows, divided among p.splits workgroups.
//
// A problem with few blocks of rows and many keys would leave most of a device
// idle. With SPLIT_KV each workgroup walks over its share of a block's key
// tiles and writes, in float32, what it has then of each row,
//
//     m  maximum of the scores that it saw, base 2, or a bit less (fwd_matrix.glsl)
//     l  sum of exp2(S - m)
//     O  sum of exp2(S - m) * V
//
// to row split * seq_q + row of O and LSE, where a row of LSE is the pair (m,
// l); attention_combine.comp puts them together. Flash-Decoding (Dao et al.,
// 2023) has the idea.
//
// The includer declares `const bool SPLIT_KV`, `const uint BLOCK_N` and the push
// constants p.
#ifndef LIB_SPLIT_KV_GLSL
#define LIB_SPLIT_KV_GLSL

// Keys first to end-1; first is below seq_kv and a multiple of BLOCK_N.
struct Keys {
    int first;
    int end;  // may be negative, where a block sees nothing
};

// share_of returns the part of a split of a block's keys, 0 to keys-1, in
// whole tiles. Shares differ by one tile at most; where there are fewer tiles
// than splits, the last ones are empty.
Keys share_of(const uint split, const int keys) {
    if (!SPLIT_KV) {
        return Keys(0, keys);
    }
    const uint tiles = (uint(max(keys, 0)) + BLOCK_N - 1) / BLOCK_N;
    const uint each = tiles / p.splits;
    const uint more = tiles % p.splits;  // splits with one tile more
    const uint first = split * each + min(split, more);
    const uint size = each + (split < more ? 1 : 0);
    return size == 0 ? Keys(0, 0) : Keys(int(first * BLOCK_N), min(int((first + size) * BLOCK_N), keys));
}

#endif
