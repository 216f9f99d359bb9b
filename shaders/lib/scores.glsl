// scores: a tile of scores in registers, the mask on it, and the state of its rows.
//
// The includer includes lib/softmax.glsl, lib/mask.glsl, lib/tile_shape.glsl and lib/rows.glsl, and
// declares `const float HEADROOM`.

// S of a subgroup's rows and one tile of keys, (SUBGROUP_ROWS, BLOCK_N).
struct Scores { MatC at[ROW_TILES * COL_TILES]; };

// hide_keys makes the scores -inf of keys that their row does not see. The first element of S is of
// row row0 and key col0. Every invocation of the subgroup calls it.
void hide_keys(inout Scores S, const int row0, const int col0) {
    const MatC index = element_index();
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const int row = row0 + int(r * MAT_M) + int(index[i * ROW_RUN]) / int(MAT_N);
            const int keys = visible_keys(row) - col0;
            [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                const int col = int(index[e]) % int(MAT_N);
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    const float s = S.at[r * COL_TILES + n][e];
                    S.at[r * COL_TILES + n][e] = col < keys - int(n * MAT_N) ? s : NEG_INF;
                }
            }
        }
    }
}

// row_max returns the largest score of the elements that this invocation holds
// of row number i of the matrix row r.
float row_max(const Scores S, const uint r, const uint i) {
    float top = S.at[r * COL_TILES][i * ROW_RUN];
    [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
        [[unroll]] for (uint e = 0; e < ROW_RUN; e++) {
            top = max(top, S.at[r * COL_TILES + n][i * ROW_RUN + e]);
        }
    }
    return top;
}

// The state of a row of S after some of its keys, of which O is a part, too.
struct RowState {
    float m;     // what l and O are relative to, base 2: a maximum of the row, less HEADROOM
    float l;     // sum of exp2(S * fold - m) over this invocation's elements
    float fold;  // S * fold are base-2 logits
};

// new_row returns the state before the first key.
RowState new_row() { return RowState(MAX_INIT, 0.0, p.scale_log2); }

// raise makes a row relative to a new maximum, if it is greater. It returns what O is multiplied by.
float raise(inout RowState row, const float top) {
    const float m = max(row.m, top - HEADROOM);
    const float alpha = exp2(row.m - m);
    row.m = m;
    row.l *= alpha;
    return alpha;
}

float weight_of(const RowState row, const float s) { return exp2(fma(s, row.fold, -row.m)); }
