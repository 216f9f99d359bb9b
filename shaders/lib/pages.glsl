// pages: the memory layout of P and dX, which one kernel of the backward pass stores for another.
//
// A page is BLOCK_M rows by BLOCK_M keys, row-major, of ELEM, eight in a uvec4. Each head has the
// pages that some row sees: block of rows after block of rows, each from key 0 on, P and dX in
// turn:
//
//     causal, 3 blocks:   0            page n:  P    uvec4  2 n PAGE8     ..
//                         1 2                   dX   uvec4  (2 n + 1) PAGE8  ..
//                         3 4 5
//
// PACKED needs NVIDIA's layout of matrices (chips.Quads). A page is then tiles of 16 rows by 32
// keys, also row-major, of 64 uvec4. The eight elements of rows r and r + 8, r < 8, and keys k,
// k + 8, k + 16 and k + 24, k < 8, are uvec4 number
//
//     k % 2 * 32 + r * 4 + k / 2
//
// with one word per key, row r in the low half. An invocation holds just these elements when it
// computes P and dX, and when it loads right matrices with their rows in another order
// (row_in_matrix).
//
// With FEATURES a window moves the ends of the rows, and sequences may be packed. Then a head has
// room for p.head_pages pages. If a window has a left side, the pages of a block of rows begin at
// the first key of its first row, and have room for p.block_pages of them:
//
//     window of two keys, 4 blocks:  0 .
//                                    2 3 .
//                                      4 5 .
//                                        6 7
//
// Elements that no row sees, and rows and keys past the last ones, are zeros.
//
// The includer declares BLOCK_M, and includes lib/mask.glsl. With FEATURES p has the values of the sequence
// (enter_sequence), and has those numbers.

const uint PAGE_LD = BLOCK_M / 8;         // uvec4 of a row
const uint PAGE8 = BLOCK_M * PAGE_LD;     // uvec4 of a page

// Whether and how far from its own position a row sees no more keys.
#ifdef FEATURES
#define KEYS_END WINDOW_RIGHT
#define KEYS_SHIFT (p.causal_shift + args.features.window_right)
#else
#define KEYS_END CAUSAL
#define KEYS_SHIFT p.causal_shift
#endif

// row_in_matrix returns which row of a right matrix is row r of a tile.
uint row_in_matrix(const uint r) { return r % 4 * 2 + r / 8 + r / 4 % 2 * 8; }
int key_blocks() { return int((p.seq_kv + BLOCK_M - 1) / BLOCK_M); }

// first_pages returns the number of pages that block 0 of rows would have if keys had no ends; block
// i has i more.
int first_pages() {
    const int m = int(BLOCK_M);
    return 1 + (KEYS_SHIFT > 0 ? (KEYS_SHIFT + m - 1) / m : -(-KEYS_SHIFT / m));
}

#ifdef FEATURES
// pages_from returns the first block of keys of which a block of rows has a page.
int pages_from(const uint block) { return visible_from(int(block * BLOCK_M)) / int(BLOCK_M); }

// end_blocks returns the block of rows after the last that has page `page`.
uint end_blocks(const uint page) {
    const int m = int(BLOCK_M);
    const int most = int((p.seq_q + BLOCK_M - 1) / BLOCK_M);
    const int after = int(page + 1) * m - p.causal_shift + args.features.window_left;  // the first row that sees none of it
    return uint(WINDOW_LEFT ? clamp((after + m - 1) / m, 0, most) : most);
}
#endif

// pages_of returns how many pages a block of rows has.
int pages_of(const uint block) {
#ifdef FEATURES
    const int end = KEYS_END ? clamp(int(block) + first_pages(), 0, key_blocks()) : key_blocks();
    return max(end - pages_from(block), 0);
#else
    return KEYS_END ? clamp(int(block) + first_pages(), 0, key_blocks()) : key_blocks();
#endif
}

// pages_before returns how many pages the blocks of rows before one have, or have room for.
uint pages_before(const uint block) {
#ifdef FEATURES
    if (WINDOW_LEFT) {
        return block * p.block_pages;
    }
#endif
    const int most = key_blocks();
    if (!KEYS_END) {
        return block * uint(most);
    }
    const int first = first_pages();
    const int some = clamp(-first, 0, int(block));        // the first block that has a page
    const int full = clamp(most - first, some, int(block));  // the first that has all
    return uint((full - some) * (some + full - 1 + 2 * first) / 2 + (int(block) - full) * most);
}

#ifdef FEATURES
// page_at returns which of the head's pages is page `page` of a block.
uint page_at(const uint block, const uint page) {
    return pages_before(block) + page - uint(pages_from(block));
}
#endif

// head_pages returns how many pages a head has, or has room for.
uint head_pages() {
#ifdef FEATURES
    return p.head_pages;
#else
    return pages_before((p.seq_q + BLOCK_M - 1) / BLOCK_M);
#endif
}

// block_seeing returns the first block of rows that has page `page`.
uint block_seeing(const uint page) {
    return KEYS_END ? uint(max(int(page) + 1 - first_pages(), 0)) : 0;
}
