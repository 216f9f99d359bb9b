// bwd_row_and_key: which row and key an element of scores is of. A part of the body of backward_dq() in
// lib/bwd_dq_matrix.glsl, with FEATURES.
//
// It expects element i of row r of matrices in column n of the tile of keys from col0 on, of which `cut` is known.
// It defines own_row, within the block, seen_row, col, within the tile, key, and whether masks show the key to the
// row: seen.

                        const uint own_row = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(place[i / ROW_RUN * ROW_RUN]) / MAT_N;
                        const int seen_row = int(block_row + own_row);
                        const uint col = n * MAT_N + uint(place[i]) % MAT_N;
                        const int key = col0 + int(col);
                        const bool seen = (!cut || in_window(seen_row, key)) && (!KEY_MASK || shown[col] != 0);
