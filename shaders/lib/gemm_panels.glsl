// gemm_panels: operands of lib/gemm_matrix.glsl that are parts of float32, with F32X2.
//
// gemm_f32x2.comp has split op(A), rows of k elements, and op(B) transposed into panels: one
// of exponents, then one for each k-tile of DEPTH columns, with a line for each row,
//
//     exponents   e, and nothing
//     k-tile      hi of DEPTH elements, lo of the same
//     k-tile      ...
//
// so that a k-tile of a block is memory without gaps. A line has BLOCK_K = 2 * DEPTH float16.
// lib/gemm_operand.glsl treats it like a line of 16-bit operands: p.k is k_tiles * BLOCK_K, the
// offset is where the first k-tile begins, the stride is the number of lines of a panel.
//
// An element is (hi + lo / LO_SCALE) * 2^(e - TOP) (lib/f32x2_far.glsl) with the e of its row. A
// product of elements takes three products of parts:
//
//     a * b = hi*hi + (hi*lo + lo*hi) / LO_SCALE + lo*lo
//                                                  ----- left out
//
// Products of float16 are exact in float32. The errors of one term, relative to |a| * |b|,
// u = 2^-24 the unit roundoff of float32:
//
//     a, b as parts   2u each at most, u/2 on average
//     lo*lo           4u at most, u/2 on average; of random sign
//
// That is at most 8u for one product. For long sums it is less than the rounding of a plain
// program, which grows with k. An element below 2^-27 of the largest of its row of op(A) or
// column of op(B) has an error of 2^-50 of that largest instead.
//
// Matrix units may cut off a sum's last bits where float32 arithmetic rounds (Fasi et al.,
// Numerical behavior of NVIDIA tensor cores, 2021). Cuts do not cancel: in a model of that
// (internal/pipelines/gemm/ref) the error of a sum of a hundred positive terms is more than four
// times as large as in a plain program. So sums stay in a matrix unit for MAT_N columns only, and
// float32 arithmetic adds them: their error is within a third of that, and less with more columns.

#include "f32x2_far.glsl"

shared uvec4 exponents[F32X2 ? (BLOCK_M + BLOCK_N) / 4 : 1];  // of the block's rows of op(A), and of its columns of op(B)

// load_exponents fills exponents. Every invocation of the workgroup calls it, and meets a
// barrier before they are read.
void load_exponents(const Operand A, const Operand B) {
    barrier();  // the exponents of the block before are read
    for (uint i = gl_LocalInvocationIndex; i < BLOCK_M + BLOCK_N; i += WORKGROUP_SIZE) {
        const bool is_a = i < BLOCK_M;
        const Operand o = is_a ? A : B;
        const uint line = min(o.first + (is_a ? i : i - BLOCK_M), o.size - 1);
        exponents[i / 4][i % 4] = fetch(is_a, (o.base + line * BLOCK_K - o.stride * BLOCK_K) / 8).x;
    }
}

// power_of_2 returns 2^e for -126 <= e <= 127.
vec4 power_of_2(const ivec4 e) { return uintBitsToFloat(uvec4(e + int(FLOAT_BIAS)) << 23); }

// unscale_strip undoes the scaling of a strip of this subgroup in tile: MAT_M rows of the block
// from row on and OUT_TILES columns of matrices from col on.
void unscale_strip(const uint row, const uint col) {
    [[unroll]] for (uint round = 0; round < MAT_M * OUT_COLS4 / SUBGROUP_SIZE; round++) {
        const uint i = round * SUBGROUP_SIZE + gl_SubgroupInvocationID;
        const uint y = row + i / OUT_COLS4;
        const uint x4 = min(col / 4 + i % OUT_COLS4, BLOCK_N / 4 - 1);  // the last strip may have fewer columns
        const uint a = exponents[y / 4][y % 4];
        const uvec4 b = exponents[BLOCK_M / 4 + x4];
        // In two steps, as the power may be no float32. Below 2^-252 nothing is left either way.
        const ivec4 e = max(ivec4(a + b) - 2 * int(TOP + FLOAT_BIAS), -252);
        const uint at = (gl_SubgroupID * MAT_M + i / OUT_COLS4) * OUT_LD + i % OUT_COLS4;
        precise const vec4 sum = uintBitsToFloat(tile[at]) * power_of_2(e / 2) * power_of_2(e - e / 2);
        tile[at] = floatBitsToUint(sum);
    }
}
