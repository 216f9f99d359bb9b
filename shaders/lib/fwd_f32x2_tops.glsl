// fwd_f32x2_tops: the exponents of the next key tile (lib/fwd_f32x2.glsl), up to the barrier that
// shares them. A part of the body of forward() in lib/fwd_matrix.glsl.
//
// It expects next_k and next_v; with FEATURES, what is hidden becomes zeros in both.

            float k_top = 0.0;
            float v_top = 0.0;
#ifdef FEATURES
            if (hides_values()) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    const bool visible = shows(block, col0, i);
                    next_k[i] = keep_if(visible, next_k[i]);  // what no row sees has no say in the exponents
                    next_v[i] = keep_if(visible, next_v[i]);
                }
            }
#endif
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                k_top = max(k_top, largest(next_k[i]));
                v_top = max(v_top, largest(next_v[i]));
            }
            share_tops(k_top, v_top);
