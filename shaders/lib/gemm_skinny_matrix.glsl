// gemm_skinny_matrix: the strips of lib/gemm_skinny.glsl without shared memory: silu of sums, in
// registers, becomes left matrices, whose elements an invocation has in the places of an
// accumulator (chips.MatrixLayout), and W the right ones, with zeros beyond its columns.
//
// A number goes in two parts, high + low, of which ELEM has 8 bits each, or 11, and what is below
// is cut off: its error is 2^-14, or 2^-20 and 2^-24 where float16 has no smaller ones, as sums are
// not rounded before they meet W.
// The column of W after the last one is 1: if a row's numbers add up to MOST or more, one of them may
// be too large for ELEM, as none is below -0.28, and the subgroup does all of it once more by strips.
// Rows beyond m, whose sums come from anything, have no say.
//
// With KEEP_X columns of op(B) may be dealt out to matrices; then X leaves straight from registers.
//
// The includer defines SKINNY_ID, the constant_id of SKINNY_MATRIX, and includes lib/gemm_sums.glsl before,
// and what lib/gemm_runs.glsl and lib/gemm_w.glsl need.

#include "gemm_w.glsl"
#include "silu.glsl"
#include "two.glsl"
#include "pack2.glsl"
#include "gemm_runs.glsl"

layout(constant_id = SKINNY_ID) const bool SKINNY_MATRIX = false;

const uint W_LD = MAT_N / 8 + 1;  // uvec4 of a row of W, one more, so that rows start in different banks
const uint Y_LD = MAT_N / 4 + 1;  // uvec4 of a row of sums of Y, likewise
const bool W_FITS = BLOCK_N * W_LD <= TILE_SIZE;
const bool Y_FITS = COLUMNS < MAT_N;  // and the column of 1
const bool KEEP_STRIPS = KEEP_X && !DEALT;
const bool BY_SKINNY = SKINNY_MATRIX && !KEEP_STRIPS && W_FITS && Y_FITS;

#ifdef ELEM_BF16
const float MOST = 3.0e38;
#else
const float MOST = 65000.0;
#endif

// high_word returns two numbers in ELEM, about, and high what they are, cut in integers: a compiler may
// take a number for its conversion and back (lib/f32x2.glsl), and then nothing would be left of it.
uint high_word(const vec2 v, out vec2 high) {
#ifdef ELEM_BF16
    const uvec2 bits = floatBitsToUint(v) & 0xffff0000u;
    high = uintBitsToFloat(bits);
    return bits.x >> 16 | bits.y;
#else
    high = uintBitsToFloat(floatBitsToUint(v) & 0xffffe000u);
    return packHalf2x16(high);
#endif
}

// spread_w brings w_tile into tile, rows of MAT_N elements, in the order of the columns of matrices.
void spread_w() {
    for (uint i = gl_LocalInvocationIndex; i < BLOCK_N * (MAT_N / 8); i += WORKGROUP_SIZE) {
        const uint place = i / (MAT_N / 8);
        const uint x = place - place % SUBGROUP_N + dealt_column(place % SUBGROUP_N);
        uvec4 words = uvec4(0);
        [[unroll]] for (uint e = 0; e < 8; e++) {
            const uint o = i % (MAT_N / 8) * 8 + e;
            if (o < COLUMNS) {
                words[e / 2] |= uint(NARROW(w_tile[o * BLOCK_N4 + x / 4][x % 4])) << e % 2 * 16;
            } else if (o == COLUMNS) {
                words[e / 2] |= uint(NARROW(1.0)) << e % 2 * 16;
            }
        }
        tile[place * W_LD + i % (MAT_N / 8)] = words;
    }
}

#include "is_number.glsl"  // here, since the order of functions is part of the bytes that a record names

// put_y writes sums of MAT_M rows of Y from tile. It returns whether a number may be too large.
bool put_y(const Work w, const uint row) {
    bool large = false;
    const uint part = w.col / SUBGROUP_N + gl_SubgroupID % SUBGROUPS_N;
    for (uint r = gl_SubgroupInvocationID; r < MAT_M; r += SUBGROUP_SIZE) {
        if (row + r < p.m) {
            const uint at = ROW_AT(c, part * gl_NumWorkGroups.z + w.batch, row + r);
            const uint from = gl_SubgroupID * MAT_M * OUT_LD + r * Y_LD;
            [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
                c1[at + o] = uintBitsToFloat(tile[from + o / 4][o % 4]);
            }
            const float total = uintBitsToFloat(tile[from + COLUMNS / 4][COLUMNS % 4]);
            large = large || total >= MOST || !is_number(total);
        }
    }
    return large;
}

// keep_run writes a run of X. Unless exact, a NaN becomes something else.
void keep_run(const uint batch, const uint row, const uint col, const vec4 low, const vec4 high, const bool exact) {
    const uint at = ROW_AT(x, batch, row) + col;
#ifdef ELEM_BF16
    const uvec2 a = exact ? uvec2(pack2(low.x, low.y), pack2(low.z, low.w)) : uvec2(round_bf16(low.x, low.y), round_bf16(low.z, low.w));
    const uvec2 b = exact ? uvec2(pack2(high.x, high.y), pack2(high.z, high.w)) : uvec2(round_bf16(high.x, high.y), round_bf16(high.z, high.w));
#else
    const uvec2 a = uvec2(pack2(low.x, low.y), pack2(low.z, low.w));
    const uvec2 b = uvec2(pack2(high.x, high.y), pack2(high.z, high.w));
#endif
    if (RUN == 8 && col + 8 <= p.n) {
        x4[at / 8] = uintBitsToFloat(uvec4(a, b));
        return;
    }
    [[dont_unroll]] for (uint e = 0; e < RUN && col + e < p.n; e++) {
        const uvec2 four = e < 4 ? a : b;
        x16[at + e] = uint16_t(((e & 2) == 0 ? four.x : four.y) >> e % 2 * 16);
    }
}

// KEEP_SUMS stores X of the sums of this subgroup, where columns are dealt out, and once more if a NaN,
// or an infinity, is among them. KEEP_RUNS stores it once.
#define KEEP_RUNS(sum, w, top, left, exact, total)                                     \
    [[unroll]] for (uint i = 0; i < RUNS; i++) {                                       \
        const vec4 low = scaled(RUN_SUMS(sum, i, 0));                                  \
        const vec4 high = RUN == 8 ? scaled(RUN_SUMS(sum, i, 4)) : vec4(0.0);          \
        total += low + high;                                                           \
        if (top + run_row(i) < p.m) {                                                  \
            keep_run(w.batch, top + run_row(i), left + run_col(i), low, high, exact);  \
        }                                                                              \
    }
#define KEEP_SUMS(sum, w, top, left)                                       \
    vec4 total = vec4(0.0);                                                \
    KEEP_RUNS(sum, w, top, left, false, total)                             \
    if (subgroupAny(!is_number(total.x + total.y + total.z + total.w))) {  \
        KEEP_RUNS(sum, w, top, left, true, total)                          \
    }

#define STORE_SKINNY(sum, w, top, left)                                                     \
    barrier();  /* operands are read */                                                     \
    spread_w();                                                                             \
    barrier();  /* tile written before it is read */                                        \
    MatB w_right[TILES_N];                                                                  \
    [[unroll]] for (uint j = 0; j < TILES_N; j++) {                                         \
        coopMatLoad(w_right[j], tile, (left - w.col + j * MAT_N) * W_LD, W_LD, ROW_MAJOR);  \
    }                                                                                       \
    barrier();  /* tile is read before it is written */                                     \
    bool large = false;                                                                     \
    [[unroll]] for (uint i = 0; i < TILES_M; i++) {                                         \
        MatC y = MatC(0.0);                                                                 \
        [[unroll]] for (uint j = 0; j < TILES_N; j++) {                                     \
            MatA high;                                                                      \
            MatA low;                                                                       \
            [[unroll]] for (uint e = 0; e < MAT_M * MAT_N / SUBGROUP_SIZE; e += 4) {        \
                const MatC s = sum[i * TILES_N + j];                                        \
                const vec4 v = silu(scaled(vec4(s[e], s[e + 1], s[e + 2], s[e + 3])));      \
                vec4 big;                                                                   \
                const TwoT h0 = TWO_FROM(high_word(v.xy, big.xy));                          \
                const TwoT h1 = TWO_FROM(high_word(v.zw, big.zw));                          \
                vec4 rest;                                                                  \
                const TwoT l0 = TWO_FROM(high_word(v.xy - big.xy, rest.xy));                \
                const TwoT l1 = TWO_FROM(high_word(v.zw - big.zw, rest.zw));                \
                high[e] = h0.x;                                                             \
                high[e + 1] = h0.y;                                                         \
                high[e + 2] = h1.x;                                                         \
                high[e + 3] = h1.y;                                                         \
                low[e] = l0.x;                                                              \
                low[e + 1] = l0.y;                                                          \
                low[e + 2] = l1.x;                                                          \
                low[e + 3] = l1.y;                                                          \
            }                                                                               \
            y = coopMatMulAdd(high, w_right[j], y);                                         \
            y = coopMatMulAdd(low, w_right[j], y);                                          \
        }                                                                                   \
        coopMatStore(y, tile, gl_SubgroupID * MAT_M * OUT_LD, Y_LD, ROW_MAJOR);             \
        strip_barrier();  /* tile written before it is read */                              \
        large = put_y(w, top + i * MAT_M) || large;                                         \
        strip_barrier();  /* and read before it is written again */                         \
    }                                                                                       \
    if (!subgroupAny(large)) {                                                              \
        return;                                                                             \
    }
