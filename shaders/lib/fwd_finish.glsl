// fwd_finish: the sums of forward() (lib/fwd_matrix.glsl) are all there: O is divided by l, and O
// and LSE are written. A part of its body, the last.
//
// It expects work, batch, head, block_row, subgroup_row, with FEATURES block, and m, l and O_; with
// F32X2 also index.

    const uint out_row = work.split * p.seq_q;  // where the rows of the head begin
    const uint o_base = HEAD_AT(o, batch, head) + (out_row + block_row) * p.o_stride_s;
    const uint lse_base = HEAD_AT(lse, batch, head) + (out_row + block_row) * p.lse_stride_s;
#ifndef F32X2
    const MatC index = element_index();
#endif
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC sum;
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            sum[i] = l[r * ROWS + i];
        }
        sum = reduce(sum, true);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = subgroup_row + r * MAT_M + uint(index[i * ROW_RUN]) / MAT_N;  // within the block
#ifdef FEATURES
            float row_m = PLAIN_M(m[r * ROWS + i]);
            float row_l = PLAIN_L(sum[i]);
            const float inverse = finish_row(block, row_m, row_l);
            if (WRITE_LSE && block_row + row < p.seq_q && speaks_for_row(index[i * ROW_RUN])) {
                put_lse(lse_base + row * p.lse_stride_s, row_m, row_l);
            }
#else
            if (WRITE_LSE && block_row + row < p.seq_q && speaks_for_row(index[i * ROW_RUN])) {
                put_lse(lse_base + row * p.lse_stride_s, PLAIN_M(m[r * ROWS + i]), PLAIN_L(sum[i]));
            }
            const float inverse = SPLIT_KV ? 1.0 : OUT_SCALE(sum[i]);
#endif
            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                    O_[r * VALUE_TILES + d][e] *= inverse;
                }
            }
        }
    }
#ifndef F32X2  // where O is always float32
    if (SPLIT_KV)
#endif
    {
        [[unroll]] for (uint stage = 0; stage < FLOAT_STAGES; stage++) {
            barrier();  // the last key tile, or the columns before, are read
            [[unroll]] for (uint e = 0; e < FLOAT_TILES; e++) {
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    if (stage * FLOAT_TILES + e < VALUE_TILES) {
                        coopMatStore(O_[r * VALUE_TILES + stage * FLOAT_TILES + e], tile, float_at(subgroup_row + r * MAT_M, e), FLOAT_LD,
                                     gl_CooperativeMatrixLayoutRowMajor);
                    }
                }
            }
            store_floats(o_base, block_row, stage * FLOAT_TILES);
        }
#ifndef F32X2
        return;
#endif
    }
#ifndef F32X2
    [[unroll]] for (uint stage = 0; stage < VALUE_STAGES; stage++) {
        barrier();  // the last key tile, or the columns before, are read
        [[unroll]] for (uint e = 0; e < STAGE_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * STAGE_TILES + e < VALUE_TILES) {
                    coopMatStore(to_left(O_[r * VALUE_TILES + stage * STAGE_TILES + e], false), tile,
                                 stage_at(subgroup_row + r * MAT_M, e), STAGE_LD, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        store_o(o_base, block_row, stage * STAGE_TILES);
    }
#endif
