// store_weights: P and dX of a tile on their way from matrices to pages (lib/pages.glsl), in
// lib/bwd_dq_matrix.glsl.
//
// With PACKED, keys of GROUP_TILES matrices change places in the tile, so that what an
// invocation has of a row in them is eight neighbouring keys, one uvec4:
//
//     key  l*8 + s  of GROUP_KEYS    is in matrix s / ROW_RUN of the group, and there
//                                    element s % ROW_RUN of invocation l of the row
//
// COL_PAIR neighbouring elements of an invocation are neighbouring columns, and the
// invocations of a row follow one another (chips.MatrixLayout.Pairs). Without PACKED matrices are
// stored as they are.
//
// The includer includes lib/rows.glsl, lib/two.glsl, lib/tile_bwd.glsl and lib/pages.glsl, and
// declares `stored8`.
#ifndef LIB_STORE_WEIGHTS_GLSL
#define LIB_STORE_WEIGHTS_GLSL

const uint GROUP_TILES = PACKED ? 8 / ROW_RUN : 1;

// P or dX of the matrices of a group so far: eight elements of each row.
struct Words {
    uvec4 at[ROW_TILES * ROWS];
};

// key_in_tile returns the key of element i of matrix n of the tile, place being element_index.
uint key_in_tile(const uint n, const uint i, const uint place) {
    if (PACKED) {
        return n / GROUP_TILES * GROUP_KEYS + gl_SubgroupInvocationID % ROW_LANES * 8 + n % GROUP_TILES * ROW_RUN + i % ROW_RUN;
    }
    return n * MAT_N + place % MAT_N;
}

// add_words adds row r of matrix n of the tile.
void add_words(inout Words words, const uint r, const uint n, const MatA x) {
    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
        const uint row = r * ROWS + i / ROW_RUN;
        const uint slot = n % GROUP_TILES * ROW_RUN + i % ROW_RUN;
        if (slot % 2 == 0) {
            words.at[row][slot / 2] = WORD_FROM(TwoT(x[i], ROW_RUN > 1 ? x[i + 1] : x[i]));
        } else if (ROW_RUN == 1) {
            words.at[row][slot / 2] = words.at[row][slot / 2] & 0xffffu | WORD_FROM(TwoT(x[i], x[i])) << 16;
        }
    }
}

// put_words stores words of the group that ends with matrix n, in the page at uvec4 `page`, of which
// col0 is the first key of the tile; place is element_index.
void put_words(const Words words, const MatC place, const uint page, const uint col0, const uint n) {
    const uint at = page + (col0 + n / GROUP_TILES * GROUP_KEYS) / 8 + gl_SubgroupInvocationID % ROW_LANES;
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(place[i * ROW_RUN]) / MAT_N;
            stored8[at + row * PAGE_LD] = words.at[r * ROWS + i];
        }
    }
}

// put_matrices stores a column of matrices, n of the tile.
void put_matrices(const Left x, const uint page, const uint col0, const uint n) {
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        const uint row = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M;
        coopMatStore(x.at[r], stored8, page + row * PAGE_LD + (col0 + n * MAT_N) / 8, PAGE_LD, gl_CooperativeMatrixLayoutRowMajor);
    }
}

// put_zeros stores zeros for the rows of the subgroup and the keys of a tile.
void put_zeros(const uint page, const uint col0) {
    const uint TILE_LD = STREAM / 8;
    for (uint i = gl_SubgroupInvocationID; i < SUBGROUP_ROWS * TILE_LD; i += gl_SubgroupSize) {
        stored8[page + (gl_SubgroupID * SUBGROUP_ROWS + i / TILE_LD) * PAGE_LD + col0 / 8 + i % TILE_LD] = uvec4(0);
    }
}

#endif
