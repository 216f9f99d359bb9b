// fwd_steady_begin: what a steady walk does first (lib/fwd_matrix.glsl, STEADY). A part of the body
// of forward(), before its loop.
//
// It expects Q_, the empty sums and the first key tile on its way: m, next_k, next_v, k_at, v_at,
// col0, first_key and full_end. It defines phase0_end, up to which key the walk is steady, and
// makes m the maxima of each row's first MAT_N scores. The tile stays where it is: the loop copies
// it once more.

    const int phase0_end = steady_end(first_key, full_end);
    if (SPLIT_LOOP && col0 < phase0_end) {
        if (!PREFETCH) {
            FETCH_NEXT(k_at, v_at, BLOCK_N)
        }
        barrier();  // Q is read
        [[unroll]] for (uint i = 0; i < COPIES; i++) {
            put_kv(i, next_k[i], next_v[i], 1.0, 1.0);
        }
        barrier();  // tile written before it is read
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            MatC first = MatC(0.0);
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                fence(d);
                MatB kt;
                coopMatLoad(kt, tile, d * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutColumnMajor);
                first = coopMatMulAdd(Q_[r * DIM_TILES + d], kt, first);
            }
            const MatC top = row_maxima(first);
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                m[r * ROWS + i] = max(MAX_INIT, top[i] * p.scale_log2);
            }
        }
    }
