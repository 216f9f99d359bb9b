// store_weights: the way of P and dX of a tile from matrices to pages (lib/pages.glsl), for
// lib/bwd_dq_matrix.glsl.

// The words of the first of two neighbouring matrices, which wait for the second, for each row of
// matrices.
struct Words { uvec4 at[ROW_TILES]; };

// two_rows returns an element of a matrix and that which is eight rows below.
uint two_rows(const MatA x, const uint i) { return WORD_FROM(TwoT(x[i], x[i + 4])); }

// put_packed stores matrix n of the tile, in row r of matrices, packed in the page at uvec4
// `page`, of which col0 is the first key of the tile: every other matrix with the one before.
void put_packed(inout Words words, const uint r, const uint n, const MatA x, const uint page, const uint col0) {
    if (n % 2 == 0) {
        words.at[r] = uvec4(two_rows(x, 0), two_rows(x, 2), two_rows(x, 1), two_rows(x, 3));
        return;
    }
    const uint tile = (gl_SubgroupID * ROW_TILES + r) * (BLOCK_M / 32) + (col0 + n * MAT_N) / 32;
    const uint at = page + tile * 64 + gl_SubgroupInvocationID;
    stored8[at] = uvec4(words.at[r].xy, two_rows(x, 0), two_rows(x, 2));
    stored8[at + 32] = uvec4(words.at[r].zw, two_rows(x, 1), two_rows(x, 3));
}

void put_matrices(const Left x, const uint page, const uint col0, const uint n) {
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        const uint row = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M;
        coopMatStore(x.at[r], stored8, page + row * PAGE_LD + (col0 + n * MAT_N) / 8, PAGE_LD, ROW_MAJOR);
    }
}

void put_zeros(const uint page, const uint col0) {
    const uint TILE_LD = PACKED ? BLOCK_N * MAT_M / 8 : BLOCK_N / 8;            // uvec4 of a line
    const uint LINES = PACKED ? ROW_TILES : SUBGROUP_ROWS;                      // of a subgroup
    const uint LINE_LD = PACKED ? PAGE_LD * MAT_M : PAGE_LD;                    // from a line to the next
    const uint at = page + gl_SubgroupID * LINES * LINE_LD + (PACKED ? col0 * MAT_M / 8 : col0 / 8);
    for (uint i = gl_SubgroupInvocationID; i < LINES * TILE_LD; i += gl_SubgroupSize) {
        stored8[at + i / TILE_LD * LINE_LD + i % TILE_LD] = uvec4(0);
    }
}
