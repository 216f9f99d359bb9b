// fwd_rescale: lazy rescaling of a walk over keys: where a row of S has grown by more than
// 2^RESCALE_THRESHOLD, O and l become relative to its maximum. A part of the body of forward() in
// lib/fwd_matrix.glsl and in lib/fwd_direct.glsl.
//
// It expects S, and m, l and O_, which it changes; ROW_SCALE(r, i), which makes scores of a row
// base-2 logits; and BASE_OF(row_max), what m becomes, HEADROOM below the maximum.

                MatC t[ROW_TILES];  // maxima of this invocation's logits
                bool grew = false;
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    [[unroll]] for (uint i = 0; i < ROWS; i++) {
#if defined(F32X2) && !defined(FEATURES)
                        SET_FOLD(r, i);
#endif
                        t[r][i] = row_max(S, r, i) * ROW_SCALE(r, i);
                        grew = grew || t[r][i] > m[r * ROWS + i] + (HEADROOM + RESCALE_THRESHOLD);
                    }
                }
                // The test needs no reduction: a row grew where one of its elements did.
                if (subgroupAny(grew)) {
                    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                        const MatC top = reduce(t[r], false);
                        [[unroll]] for (uint i = 0; i < ROWS; i++) {
                            const float m_new = max(m[r * ROWS + i], BASE_OF(top[i]));
                            const float alpha = exp2(m[r * ROWS + i] - m_new);
                            m[r * ROWS + i] = m_new;
                            l[r * ROWS + i] *= alpha;
                            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                                [[unroll]] for (uint e = 0; e < ROW_RUN; e++) {
                                    O_[r * VALUE_TILES + d][i * ROW_RUN + e] *= alpha;
                                }
                            }
                        }
                    }
                }
