// fwd_next_tile: the key tile from col0 on goes to shared memory, and with PREFETCH the one after
// it into registers. A part of the body of forward() in lib/fwd_matrix.glsl.
//
// It expects col0, last and MASKED, with FEATURES block and block_row, and that k_at and v_at are
// of the tile, of which next_k and next_v are the copies with PREFETCH. They are of the next
// tile then. It defines, with F32X2, exponents, the tile's (lib/fwd_f32x2.glsl).

            if (!PREFETCH) {
                FETCH_NEXT(k_at, v_at, MASKED ? last - col0 : BLOCK_N)
            }
#ifdef F32X2
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
#elif defined(FEATURES)
            if (hides_values()) {
                [[unroll]] for (uint i = 0; i < COPIES; i++) {
                    next_v[i] = keep_if(shows(block, col0, i), next_v[i]);
                }
            }
#endif
            barrier();  // the tile before is read; with F32X2, tile_tops written before it is read
#ifdef F32X2
            const uvec2 exponents = tile_exponents();
#endif
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                put_kv(i, next_k[i], next_v[i], scale_of(exponents.x), scale_of(exponents.y));
                put_shown(block, col0, i);
            }
            fill_kept(block, block_row, col0);
            barrier();  // tile written before it is read; tile_tops is read
            k_at += BLOCK_N * p.k_stride_s;
            v_at += BLOCK_N * p.v_stride_s;
            if (PREFETCH) {
                // Past the end, the last key again: a wasted load is cheaper than a branch.
                const uint rest = uint(max(int(last) - col0 - int(BLOCK_N), 0));
                const uint back = col0 + BLOCK_N > last ? BLOCK_N : 0;
                FETCH_NEXT(k_at - back * p.k_stride_s, v_at - back * p.v_stride_s, rest)
            }
