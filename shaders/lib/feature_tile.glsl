// feature_tile: features on a tile of keys in shared memory and of scores in
// registers, for the matrix kernels.

#include "dropout.glsl"
#include "feature_keys.glsl"

// fold_row multiplies the scores that this invocation holds of row number i of the matrix row r.
void fold_row(inout Scores S, const uint r, const uint i, const float fold) {
    [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
        [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
            S.at[r * COL_TILES + n][e] *= fold;
        }
    }
}

#ifdef FEATURES
// score_tile turns S of the rows from row0 on and the keys from col0 on into scores; with LOGITS S is
// base-2 logits. If CUT, the window hides some of the keys from some of the rows. Place is
// element_index().
void score_tile(inout Scores S, const Block b, const MatC place, const int row0, const int col0, const bool CUT) {
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const int row = row0 + int(r * MAT_M) + int(place[i * ROW_RUN]) / int(MAT_N);
            const int from = visible_from(row) - col0;
            const int keys = visible_keys(row) - col0;
            [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    const int col = int(n * MAT_N) + int(place[e]) % int(MAT_N);
                    const bool in_tile = !CUT || col < keys && (!WINDOW_LEFT || col >= from);
                    const bool visible = !KEY_MASK || shown[col] != 0;
                    S.at[r * COL_TILES + n][e] = score(b, S.at[r * COL_TILES + n][e], 1.0, row, col0 + col, in_tile && visible);
                }
            }
        }
    }
}

// kept_weight returns the weight of an element of a matrix whose first is in row row0 and column col0
// of the tile, or 0; place is the element's element_index.
float kept_weight(const float weight, const uint row0, const uint col0, const float place) {
    return is_kept(row0 + uint(place) / MAT_N, col0 + uint(place) % MAT_N) ? weight : 0.0;
}
#endif
