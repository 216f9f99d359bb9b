// decode_matrix_rows: O and statistics, as matrices have them, for lib/decode_combine.glsl.

#include "decode_combine.glsl"

// share_rows adds up the lanes' parts, and puts m and l of each row into shared memory.
void share_rows(inout Sums sums) {
    [[unroll]] for (uint i = 0; i < ROW_EIGHTS; i++) {
        sums.l[i] += subgroupShuffleXor(sums.l[i], 1);
        sums.l[i] += subgroupShuffleXor(sums.l[i], 2);
        if (lane_t() == 0 && column_part() == 0) {
            row_sums[stripe() * ROWS + i * 8 + lane_g()] = vec2(sums.m[i], sums.l[i]);
        }
    }
}

// put_rows puts O of the rows r0 to r0+PASS_ROWS-1 into shared memory.
void put_rows(const Sums sums, const uint r0) {
    [[unroll]] for (uint i = 0; i < SUM_ROWS; i++) {
        const uint r = SUM_ROW(i);
        if (r - r0 < PASS_ROWS) {
            [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
                [[unroll]] for (uint c = 0; c < SUM_QUADS; c++) {
                    const uint col = SUM_COLUMN(n, c);
                    const uint m = SUM_PRODUCT(n, c);
                    const uint a = O_MATRIX(SUM_EIGHT(i), m);
                    const uint b = O_MATRIX(SUM_EIGHT(i), m + 1);
                    const uint e = O_ELEMENT(SUM_EIGHT(i), m) + SUM_ELEMENT(i, c);
                    const uint f = O_ELEMENT(SUM_EIGHT(i), m + 1) + SUM_ELEMENT(i, c);
                    if (VALUE_DIM % (64 * COLUMN_PARTS) == 0 || col < VALUE_DIM) {
                        put_quad(r - r0, col / 4, vec4(sums.o[a][e], sums.o[a][e + 2], sums.o[b][f], sums.o[b][f + 2]));
                    }
                }
            }
        }
    }
}

DEFINE_COMBINE_SUBGROUPS
