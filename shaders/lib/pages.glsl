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
// FRAGMENTS needs NVIDIA's layout of matrices (chips.Quads). A page is then tiles of 16 rows by 32
// keys, also row-major, of 64 uvec4. The eight elements of rows r and r + 8, r < 8, and keys k,
// k + 8, k + 16 and k + 24, k < 8, are uvec4 number
//
//     k % 2 * 32 + r * 4 + k / 2
//
// with one word per key, row r in the low half. An invocation holds just these elements when it
// computes P and dX, and when it loads right matrices with their rows in another order
// (row_in_matrix).
//
// Elements that no row sees, and rows and keys past the last ones, are zeros.
//
// The includer declares BLOCK_M, and includes lib/mask.glsl.
#ifndef LIB_PAGES_GLSL
#define LIB_PAGES_GLSL

const uint PAGE_LD = BLOCK_M / 8;         // uvec4 of a row
const uint PAGE8 = BLOCK_M * PAGE_LD;     // uvec4 of a page

// row_in_matrix returns which row of a right matrix is row r of a tile.
uint row_in_matrix(const uint r) {
    return r % 4 * 2 + r / 8 + r / 4 % 2 * 8;
}

// key_blocks returns how many blocks of keys there are.
int key_blocks() {
    return int((p.seq_kv + BLOCK_M - 1) / BLOCK_M);
}

// first_pages returns the number of pages that block 0 of rows would have if keys had no ends; block
// i has i more.
int first_pages() {
    const int m = int(BLOCK_M);
    return 1 + (p.causal_shift > 0 ? (p.causal_shift + m - 1) / m : -(-p.causal_shift / m));
}

// pages_of returns how many pages a block of rows has.
int pages_of(const uint block) {
    return CAUSAL ? clamp(int(block) + first_pages(), 0, key_blocks()) : key_blocks();
}

// pages_before returns how many pages the blocks of rows before one have.
uint pages_before(const uint block) {
    const int most = key_blocks();
    if (!CAUSAL) {
        return block * uint(most);
    }
    const int first = first_pages();
    const int some = clamp(-first, 0, int(block));        // the first block that has a page
    const int full = clamp(most - first, some, int(block));  // the first that has all
    return uint((full - some) * (some + full - 1 + 2 * first) / 2 + (int(block) - full) * most);
}

// head_pages returns how many pages a head has.
uint head_pages() {
    return pages_before((p.seq_q + BLOCK_M - 1) / BLOCK_M);
}

// block_seeing returns the first block of rows that has page `page`.
uint block_seeing(const uint page) {
    return CAUSAL ? uint(max(int(page) + 1 - first_pages(), 0)) : 0;
}

#endif
