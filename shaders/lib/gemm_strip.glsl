// gemm_strip: sums of products leave lib/gemm_matrix.glsl through an epilogue; those of
// parts (PARTS_ID, lib/gemm_operand.glsl) get their powers of two before.
//
// The includer includes lib/gemm_matrix.glsl before, and what lib/gemm_epilogue.glsl needs.
#ifndef LIB_GEMM_STRIP_GLSL
#define LIB_GEMM_STRIP_GLSL

#include "gemm_epilogue.glsl"

// odd_place returns 1 where element (row, col) of C is at an odd place, else 0.
uint odd_place(const Work w, const uint row, const uint col) {
    return p.c_offset + w.batch * p.c_stride_b + row * p.c_stride + col & 1;
}

// is_whole reports whether a strip is inside of C, so that it needs no conditions.
bool is_whole(const Work w, const uint row, const uint col) {
    return OUT_ALIGNED && row + MAT_M <= p.m && col + OUT_COLS4 * 4 <= columns_end(w, p.n);
}

// store_strip writes a strip from tile to C.
void store_strip(const Work w, const uint row, const uint col, const uint strip) {
#ifdef PARTS_ID
    if (PARTS) {
        unscale_strip(row - w.row, col - w.col);
        strip_barrier();  // other invocations read what it wrote
    }
#endif
    const uint base = gl_SubgroupID * MAT_M * OUT_LD;
    const uint end = columns_end(w, p.n);
    const uint lane = gl_SubgroupInvocationID;
    if (is_whole(w, row, col)) {
        // Without conditions, and loads before stores, which they do not move over, so that
        // those of all rounds are on their way at once.
        const uint ROUNDS = MAT_M * OUT_COLS4 / SUBGROUP_SIZE;
        vec4 sums[ROUNDS];
        Extras extras[ROUNDS];
        [[unroll]] for (uint round = 0; round < ROUNDS; round++) {
            const uint i = round * SUBGROUP_SIZE + lane;
            sums[round] = uintBitsToFloat(tile[base + i / OUT_COLS4 * OUT_LD + i % OUT_COLS4]);
            extras[round] = fetch(w.batch, row + i / OUT_COLS4, col + i % OUT_COLS4 * 4, 4);
        }
        [[unroll]] for (uint round = 0; round < ROUNDS; round++) {
            const uint i = round * SUBGROUP_SIZE + lane;
            finish(w.batch, row + i / OUT_COLS4, col + i % OUT_COLS4 * 4, sums[round], extras[round], 4);
        }
        return;
    }
    if (OUT_ALIGNED) {
        [[dont_unroll]] for (uint i = lane; i < MAT_M * OUT_COLS4; i += SUBGROUP_SIZE) {
            const uint y = row + i / OUT_COLS4;
            const uint x = col + i % OUT_COLS4 * 4;
            const vec4 sum = uintBitsToFloat(tile[base + i / OUT_COLS4 * OUT_LD + i % OUT_COLS4]);
            if (y < p.m && x + 4 <= end) {
                finish(w.batch, y, x, sum, 4);
            } else if (y < p.m && x < end) {
                for (uint e = 0; x + e < end; e++) {
                    finish(w.batch, y, x + e, vec4(sum[e]), 1);
                }
            }
        }
        return;
    }
    // Pairs of elements that are one word of C where it is 16-bit, and then what has no
    // partner: the first element of rows that start at an odd place, and maybe the last.
    const uint cols = end > col ? min(end - col, OUT_COLS4 * 4) : 0;
    [[unroll]] for (uint round = 0; round < MAT_M * OUT_COLS4 * 2 / SUBGROUP_SIZE; round++) {
        const uint i = round * SUBGROUP_SIZE + lane;
        const uint y = row + i / (OUT_COLS4 * 2);
        const uint x = i % (OUT_COLS4 * 2) * 2 + odd_place(w, y, col);  // within the strip, as all that follow
        const uint at = base + i / (OUT_COLS4 * 2) * OUT_LD;
        const float sum0 = uintBitsToFloat(tile[at + x / 4][x % 4]);
        const float sum1 = uintBitsToFloat(tile[at + (x + 1) / 4][(x + 1) % 4]);
        if (y < p.m && x + 1 < cols) {
            finish(w.batch, y, col + x, vec4(sum0, sum1, 0.0, 0.0), 2);
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

#endif
