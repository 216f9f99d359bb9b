// fwd_f32x2_values: the weights of a key tile and O += P V (lib/fwd_f32x2.glsl). A part of the
// body of forward() in lib/fwd_matrix.glsl.
//
// It expects S, exponents and the tile in shared memory, and adds to O_ and to l of rows.

            MatA P_hi[ROW_TILES * COL_TILES];  // (SUBGROUP_ROWS, BLOCK_N)
            MatA P_lo[ROW_TILES * COL_TILES];
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                float weights[ROWS];  // their sums over this tile
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    weights[i] = 0.0;
                }
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    MatC hi;
                    MatC lo;
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        float weight = weight_of(rows[r * ROWS + i / ROW_RUN], S.at[r * COL_TILES + n][i]);
                        weights[i / ROW_RUN] += weight;
                        weight = kept_weight(weight, subgroup_row + r * MAT_M, n * MAT_N, place[i]);
                        hi[i] = round_to_hi(weight);
                        lo[i] = weight - hi[i];
                    }
                    P_hi[r * COL_TILES + n] = to_left(hi, true);
                    P_lo[r * COL_TILES + n] = to_left(lo, false);
                }
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    rows[r * ROWS + i].l += weights[i];
                }
            }

            const float fold_o = fold_values(exponents.y);
            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                fence(d);
                MatB hi[COL_TILES];
                MatC sum[ROW_TILES];  // of this tile
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    sum[r] = MatC(0.0);
                }
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    MatB lo;
                    const uint at = n * MAT_N * LD + d * (MAT_N / 8);
                    coopMatLoad(hi[n], tile, V_HI + at, LD, ROW_MAJOR);
                    coopMatLoad(lo, tile, V_LO + at, LD, ROW_MAJOR);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        sum[r] = coopMatMulAdd(P_hi[r * COL_TILES + n], lo, sum[r]);
                        sum[r] = coopMatMulAdd(P_lo[r * COL_TILES + n], hi[n], sum[r]);
                    }
                }
                [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        sum[r] = coopMatMulAdd(P_hi[r * COL_TILES + n], hi[n], sum[r]);
                    }
                }
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        O_[r * VALUE_TILES + d][i] = fma(sum[r][i], fold_o, O_[r * VALUE_TILES + d][i]);
                    }
                }
            }
