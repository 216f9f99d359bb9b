// fwd_steady_end: what a steady walk does last (lib/fwd_matrix.glsl, STEADY). A part of the body of
// forward(), after the loop of each phase.
//
// It expects MASKED, phase0_end, first_key and all that the loop changes: where a weight, l or O
// has overflowed, that is as before the first key, so that the next phase has all tiles.

        if (!MASKED && first_key < phase0_end) {
            bool finite = true;
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    finite = finite && is_finite(l[r * ROWS + i]);
                }
                [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                    [[unroll]] for (uint e = 0; e < LENGTH; e++) {
                        finite = finite && is_finite(O_[r * VALUE_TILES + d][e]);
                    }
                }
            }
            if (any_of_workgroup(!finite)) {  // from the first key on, as if there were no such tiles
                k_at -= (col0 - first_key) * p.k_stride_s;
                v_at -= (col0 - first_key) * p.v_stride_s;
                col0 = first_key;
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    [[unroll]] for (uint i = 0; i < ROWS; i++) {
                        m[r * ROWS + i] = MAX_INIT;
                        l[r * ROWS + i] = 0.0;
                    }
                    [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                        O_[r * VALUE_TILES + d] = MatC(0.0);
                    }
                }
                FETCH_NEXT(k_at, v_at, last - first_key)
            }
        }
