// dropout: the kept weights of a tile, as bits in shared memory. One call of philox serves
// four neighbouring keys of a row, which rarely belong to one invocation.
//
// The includer declares WORKGROUP_SIZE and includes lib/features.glsl. It may define
// TILE_ROWS and TILE_KEYS, the sizes of a tile, if those are not BLOCK_M and BLOCK_N.

#ifdef FEATURES

#ifndef TILE_ROWS
#define TILE_ROWS BLOCK_M
#define TILE_KEYS BLOCK_N
#endif

const uint WORD_KEYS = TILE_KEYS < 32 ? TILE_KEYS : 32;            // keys of one word
const uint KEPT_WORDS = (TILE_KEYS + WORD_KEYS - 1) / WORD_KEYS;  // of one row
shared uint kept[DROPOUT ? TILE_ROWS * KEPT_WORDS : 1];           // (TILE_ROWS, KEPT_WORDS)

// kept_word returns the bits of a row and the keys of the block from `key` on.
uint kept_word(const Block b, const uint row, const uint key) {
    const uint first = b.first_key + key;
    uint bits = 0;
    [[dont_unroll]] for (uint group = first / 4; group * 4 < first + WORD_KEYS; group++) {
        const uvec4 bit = uvec4(kept_of_four(b, row, group)) << uvec4(0, 1, 2, 3);
        const uint four = bit.x | bit.y | bit.z | bit.w;
        const int at = int(group * 4) - int(first);  // -3 and more
        bits |= at < 0 ? four >> -at : four << at;
    }
    return bits;
}

// fill_kept fills the bits of the tile of rows and keys that starts at (row0, col0). Every
// invocation of the workgroup calls it, with barriers between it and calls of is_kept.
void fill_kept(const Block b, const uint row0, const uint col0) {
    if (!DROPOUT) {
        return;
    }
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < TILE_ROWS * KEPT_WORDS; i += WORKGROUP_SIZE) {
        kept[i] = kept_word(b, row0 + i / KEPT_WORDS, col0 + i % KEPT_WORDS * WORD_KEYS);
    }
}

// is_kept reports whether the weight in row `row` and column `col` of the tile is kept.
bool is_kept(const uint row, const uint col) {
    return !DROPOUT || (kept[row * KEPT_WORDS + col / WORD_KEYS] >> col % WORD_KEYS & 1u) != 0;
}
#else
#define fill_kept(block, row0, col0)
#endif
