// fwd_rescale: lazy rescaling of a walk over keys: where a row of S has grown by more than
// 2^RESCALE_THRESHOLD, O and l become relative to its maximum. A part of the body of forward() in
// lib/fwd_matrix.glsl and in lib/fwd_direct.glsl.
//
// It expects S, and `RowState rows[]` (lib/scores.glsl) and O_, which it changes.

                const float RESCALE_THRESHOLD = 8.0;
                MatC t[ROW_TILES];  // maxima of this invocation's logits
                bool grew = false;
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    [[unroll]] for (uint i = 0; i < ROWS; i++) {
                        t[r][i] = row_max(S, r, i) * rows[r * ROWS + i].fold;
                        grew = grew || t[r][i] > rows[r * ROWS + i].m + (HEADROOM + RESCALE_THRESHOLD);
                    }
                }
                // The test needs no reduction: a row grew where one of its elements did.
                if (subgroupAny(grew)) {
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        const MatC top = reduce(t[r], false);
                        [[unroll]] for (uint i = 0; i < ROWS; i++) {
                            const float alpha = raise(rows[r * ROWS + i], top[i]);
                            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                                [[unroll]] for (uint e = 0; e < ROW_RUN; e++) {
                                    O_[r * VALUE_TILES + d][i * ROW_RUN + e] *= alpha;
                                }
                            }
                        }
                    }
                }
