// gemm_strip: the epilogue of the sums of lib/gemm_matrix.glsl. Sums of parts (F32X2_ID,
// lib/gemm_operand.glsl) are first unscaled by their powers of two.
//
// The includer first includes lib/gemm_matrix.glsl and what lib/gemm_epilogue.glsl needs.

#include "gemm_epilogue.glsl"

// odd_place returns 1 where element (row, col) of C is at an odd place, else 0.
uint odd_place(const Work w, const uint row, const uint col) {
    return ROW_AT(c, w.batch, row) + col & 1;
}

// pair_row and pair_col return the row and column of a strip at which this invocation's pair
// number round begins; the column is at an even place of C. Rounds of a subgroup are whole rows,
// or parts of one row.
uint pair_row(const uint round) {
    const uint ROW_PAIRS = OUT_COLS4 * 2;
    return round * SUBGROUP_SIZE / ROW_PAIRS + gl_SubgroupInvocationID / ROW_PAIRS;
}

uint pair_col(const Work w, const uint row, const uint col, const uint round) {
    const uint ROW_PAIRS = OUT_COLS4 * 2;
    // What is the same in all rounds, and what is not.
    const uint pair = gl_SubgroupInvocationID % ROW_PAIRS + round * SUBGROUP_SIZE % ROW_PAIRS;
    const uint odd = odd_place(w, row + gl_SubgroupInvocationID / ROW_PAIRS, col) + (round * SUBGROUP_SIZE / ROW_PAIRS & 1) * p.c_stride;
    return pair * 2 + (odd & 1);
}

// is_whole reports whether a strip is inside C and so needs no conditions. With conditions in all
// strips, the backward pass of mlp takes 9 % longer (H200).
bool is_whole(const Work w, const uint row, const uint col) {
    return OUT_ALIGNED && row + MAT_M <= p.m && col + OUT_COLS4 * 4 <= columns_end(w, p.n);
}

// RESULTS(N, WIDTH) makes words of sums and extras.
#define RESULTS(N, WIDTH)                                           \
    Results words[N];                                               \
    [[unroll]] for (uint round = 0; round < N; round++) {           \
        words[round] = results(sums[round], extras[round], WIDTH);  \
    }

void store_strip(const Work w, const uint row, const uint col, const uint strip) {
#ifdef F32X2_ID
    if (F32X2) {
        unscale_strip(row - w.row, col - w.col);
        strip_barrier();  // other invocations read what it wrote
    }
#endif
    const uint base = gl_SubgroupID * MAT_M * OUT_LD;
    const uint end = columns_end(w, p.n);
    const uint lane = gl_SubgroupInvocationID;
    // All loads before all stores, since loads do not move over stores: so the loads of a strip
    // are in flight at once.
    const uint FOURS = MAT_M * OUT_COLS4 / SUBGROUP_SIZE;
    if (is_whole(w, row, col)) {
        vec4 sums[FOURS];
        Extras extras[FOURS];
        [[unroll]] for (uint round = 0; round < FOURS; round++) {
            const uint i = round * SUBGROUP_SIZE + lane;
            sums[round] = uintBitsToFloat(tile[base + i / OUT_COLS4 * OUT_LD + i % OUT_COLS4]);
            extras[round] = fetch(w.batch, row + i / OUT_COLS4, col + i % OUT_COLS4 * 4, 4);
        }
        RESULTS(FOURS, 4)
        [[unroll]] for (uint round = 0; round < FOURS; round++) {
            const uint i = round * SUBGROUP_SIZE + lane;
            store(w.batch, row + i / OUT_COLS4, col + i % OUT_COLS4 * 4, words[round], 4);
        }
        return;
    }
    if (OUT_ALIGNED) {
        vec4 sums[FOURS];
        Extras extras[FOURS];
        [[unroll]] for (uint round = 0; round < FOURS; round++) {
            const uint i = round * SUBGROUP_SIZE + lane;
            const uint y = row + i / OUT_COLS4;
            const uint x = col + i % OUT_COLS4 * 4;
            sums[round] = uintBitsToFloat(tile[base + i / OUT_COLS4 * OUT_LD + i % OUT_COLS4]);
            if (y < p.m && x + 4 <= end) {
                extras[round] = fetch(w.batch, y, x, 4);
            }
        }
        RESULTS(FOURS, 4)
        [[unroll]] for (uint round = 0; round < FOURS; round++) {
            const uint i = round * SUBGROUP_SIZE + lane;
            const uint y = row + i / OUT_COLS4;
            const uint x = col + i % OUT_COLS4 * 4;
            if (y < p.m && x + 4 <= end) {
                store(w.batch, y, x, words[round], 4);
            }
        }
        // What is left of rows whose end is not at a multiple of four.
        const uint left = end / 4 * 4;
        if (left >= col && left < min(end, col + OUT_COLS4 * 4)) {
            for (uint r = lane; r < MAT_M && row + r < p.m; r += SUBGROUP_SIZE) {
                const vec4 sum = uintBitsToFloat(tile[base + r * OUT_LD + (left - col) / 4]);
                for (uint e = 0; left + e < end; e++) {
                    finish(w.batch, row + r, left + e, vec4(sum[e]), 1);
                }
            }
        }
        return;
    }
    // Pairs of elements that are one word of a 16-bit C, then the elements without a partner:
    // the first element of rows that start at an odd place, and perhaps the last.
    const uint cols = end > col ? min(end - col, OUT_COLS4 * 4) : 0;
    const uint PAIRS = FOURS * 2;
    vec4 sums[PAIRS];
    Extras extras[PAIRS];
    [[unroll]] for (uint round = 0; round < PAIRS; round++) {
        const uint y = pair_row(round);
        const uint x = pair_col(w, row, col, round);  // within the strip, as all that follow
        const uint at = base + y * OUT_LD;
        sums[round] = uintBitsToFloat(uvec4(tile[at + x / 4][x % 4], tile[at + (x + 1) / 4][(x + 1) % 4], 0, 0));
        if (row + y < p.m && x + 1 < cols) {
            extras[round] = fetch(w.batch, row + y, col + x, 2);
        }
    }
    RESULTS(PAIRS, 2)
    [[unroll]] for (uint round = 0; round < PAIRS; round++) {
        const uint y = pair_row(round);
        const uint x = pair_col(w, row, col, round);
        if (row + y < p.m && x + 1 < cols) {
            store(w.batch, row + y, col + x, words[round], 2);
        }
    }
    [[unroll]] for (uint round = 0; round < (MAT_M * 2 + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE; round++) {
        const uint i = round * SUBGROUP_SIZE + lane;
        const uint y = row + i / 2;
        const uint odd = odd_place(w, y, col);
        const bool last = i % 2 == 1;
        const bool alone = last ? cols > odd && (cols - odd) % 2 == 1 : cols > 0 && odd == 1;
        if (y < min(p.m, row + MAT_M) && alone) {
            const uint x = last ? cols - 1 : 0;
            finish(w.batch, y, col + x, vec4(uintBitsToFloat(tile[base + i / 2 * OUT_LD + x / 4][x % 4])), 1);
        }
    }
}
