// bwd_dkv_weights: P and dX of a column of matrices, keys by rows. A part of the body of the walk in
// lib/bwd_dkv_matrix.glsl.
//
// It expects S and dP of column n of the tile of rows from row0 on, stats and column, MASKED, and
// with FEATURES block, cut and unhidden. It defines P_ and dX_, and with WITH_DQ shares dX_.

                    vec2 stat[COL_RUN];
                    int visible[COL_RUN];
#ifdef FEATURES
                    int from[COL_RUN];
#endif
                    [[unroll]] for (uint e = 0; e < COL_RUN; e++) {
                        stat[e] = stats[n * MAT_N + column[e]];
                        const uint row = row0 + n * MAT_N + column[e];
#ifdef FEATURES
                        from[e] = visible_from(int(row));
                        visible[e] = row < p.seq_q ? visible_keys(int(row)) : 0;
#else
                        visible[e] = MASKED && row < p.seq_q ? visible_keys(int(row)) - key0 : 0;
#endif
                    }
                    Left P_, dX_;
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        MatC weight, dX;
                        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
#ifdef FEATURES
                            const uint col = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(place[i / ROW_RUN * ROW_RUN]) / MAT_N;
                            const uint row = n * MAT_N + column[i % COL_RUN];
                            const int key = int(col0 + col);
                            const bool seen = unhidden[r * ROWS + i / ROW_RUN] && (!cut || key >= from[i % COL_RUN] && key < visible[i % COL_RUN]);
                            const Weighed x = weigh(block, S.at[r][i], dP.at[r][i], stat[i % COL_RUN], int(row0 + row), key, seen, is_kept(row, col));
                            weight[i] = x.P;
                            dX[i] = x.dX;
#else
                            weight[i] = exp2(fma(S.at[r][i], p.scale_log2, -stat[i % COL_RUN].x));
                            dX[i] = weight[i] * (dP.at[r][i] - stat[i % COL_RUN].y);
                            if (MASKED) {  // K and V of hidden keys may be NaN
                                const bool seen = int(r * MAT_M + uint(place[i]) / MAT_N) < visible[i % COL_RUN];
                                weight[i] = seen ? weight[i] : 0.0;
                                dX[i] = seen ? dX[i] : 0.0;
                            }
#endif
                        }
                        set_left(P_, r, weight, weight_tops());
                        set_left(dX_, r, dX, row_tops(dX));
#ifdef WITH_DQ
                        coopMatStore(dX_.at[r], exchange, (gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M) * EXCHANGE_LD + n * (MAT_N / 8),
                                     EXCHANGE_LD, gl_CooperativeMatrixLayoutRowMajor);
#endif
                    }
