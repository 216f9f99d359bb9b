// fwd_f32x2_scores: S of a key tile (lib/fwd_f32x2.glsl). A part of the body of forward() in
// lib/fwd_matrix.glsl.
//
// It expects S, Q_hi and Q_lo (lib/fwd_f32x2_q.glsl), and the tile in shared memory.

            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                MatC small[ROW_TILES];  // hi*lo + lo*hi
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r * COL_TILES + n] = MatC(0.0);
                    small[r] = MatC(0.0);
                }
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    fence(d);
                    MatB hi;  // K^T: a row-major tile of K read by columns
                    MatB lo;
                    const uint at = n * MAT_N * LD + d * (MAT_N / 8);
                    coopMatLoad(hi, tile, K_HI + at, LD, COLUMN_MAJOR);
                    coopMatLoad(lo, tile, K_LO + at, LD, COLUMN_MAJOR);
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        S.at[r * COL_TILES + n] = coopMatMulAdd(Q_hi[r * DIM_TILES + d], hi, S.at[r * COL_TILES + n]);
                        small[r] = coopMatMulAdd(Q_hi[r * DIM_TILES + d], lo, small[r]);
                        small[r] = coopMatMulAdd(Q_lo[r * DIM_TILES + d], hi, small[r]);
                    }
                }
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S.at[r * COL_TILES + n] += small[r];
                }
            }
