// bwd_stored_weights: P and dX of a column of matrices, which are stored (lib/store_weights.glsl).
// A part of the body of backward_dq() in lib/bwd_dq_matrix.glsl.
//
// It expects S and dP of column n of the tile of keys from col0 on, MASKED or with FEATURES cut, and where they go:
// weights_page, page_col, P_words and dX_words. It defines dX_.

                Left dX_;
                Left P_;
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    MatC dX;
                    MatC weight;
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        const uint row = r * ROWS + i / ROW_RUN;
#ifdef FEATURES
                        const uint own_row = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(place[i / ROW_RUN * ROW_RUN]) / MAT_N;
                        const int seen_row = int(block_row + own_row);
                        const uint col = n * MAT_N + uint(place[i]) % MAT_N;
                        const int key = col0 + int(col);
                        const bool seen = (!cut || in_window(seen_row, key)) && (!KEY_MASK || shown[col] != 0);
                        const Weighed x = weigh(block, S.at[r][i], dP.at[r][i], vec2(lse2[row], delta[row]), seen_row, key, seen, is_kept(own_row, col));
                        weight[i] = x.P;
                        dX[i] = x.dX;
#else
                        weight[i] = exp2(fma(S.at[r][i], p.scale_log2, -lse2[row]));
                        dX[i] = weight[i] * (dP.at[r][i] - delta[row]);
                        if (MASKED) {
                            const uint at = uint(place[i]);
                            const bool seen = col0 + int(n * MAT_N + at % MAT_N) < visible_keys(row0 + int(r * MAT_M + at / MAT_N));
                            weight[i] = seen ? weight[i] : 0.0;
                            dX[i] = seen ? dX[i] : 0.0;
                        }
#endif
                    }
                    set_left(dX_, r, dX, row_tops(dX));
                    set_left(P_, r, weight, weight_tops());
                    if (FRAGMENTS) {
                        put_fragment(P_words, r, n, P_.at[r], weights_page, page_col);
                        put_fragment(dX_words, r, n, dX_.at[r], weights_page + PAGE8, page_col);
                    }
                }
                if (!FRAGMENTS) {
                    put_matrices(P_, weights_page, page_col, n);
                    put_matrices(dX_, weights_page + PAGE8, page_col, n);
                }
