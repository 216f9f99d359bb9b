// gemm_direct: the way of a block from sums to C out of registers, where columns of op(B) are dealt
// out to matrices (lib/deal.glsl): no shared memory, and no barrier.
//
// Loads of R, X and C come all at once, before all stores, which they do not move over.

#include "gemm_runs.glsl"

const bool RUN_16 = RUN == 8 && OUT_FORMAT != FORMAT_F32;  // 16 bytes
const bool RUN_READS = READS_C || RESIDUAL || TIMES_SLOPE || BIAS;
const bool RUN_ROUNDED = OUT_FORMAT == FORMAT_BF16 && !RUN_READS;  // X may be where C is, and gone the second time

// What the epilogue reads for a run: for its first four elements, and for the others.
struct RunExtras {
    Extras low;
    Extras high;
};

#define FETCH_16(to, vec4s, base, stride_b, stride)                                                  \
    const uvec4 to##_8 = floatBitsToUint(vec4s[base + batch * stride_b + row * stride + col >> 3]);  \
    e.low.to.xy = to##_8.xy;                                                                         \
    e.high.to.xy = to##_8.zw;

RunExtras fetch_run(const uint batch, const uint row, const uint col) {
    RunExtras e = RunExtras(NO_EXTRAS, NO_EXTRAS);
    if (!RUN_16) {
        e.low = fetch(batch, row, col, RUN_WIDTH);
        if (RUN == 8) {
            e.high = fetch(batch, row, col + 4, 4);
        }
        return e;
    }
    if (READS_C) {
        FETCH_16(c, c4, p.c_offset, p.c_stride_b, p.c_stride)
    }
    if (RESIDUAL) {
        FETCH_16(r, r4, p.r_offset, p.r_stride_b, p.r_stride)
    }
    if (TIMES_SLOPE) {
        FETCH_16(x, x4, p.x_offset, p.x_stride_b, p.x_stride)
    }
    if (BIAS) {
        e.low.bias = get_bias(ROW_AT(s, batch, row) + col, 4);
        e.high.bias = get_bias(ROW_AT(s, batch, row) + col + 4, 4);
    }
    return e;
}

// run_words returns four numbers as they lie in memory. Unless exact, a NaN becomes something else.
uvec4 run_words(const vec4 v, const bool exact) {
    return exact ? narrow_words(v, 4) : uvec4(round_bf16(v.x, v.y), round_bf16(v.z, v.w), 0, 0);
}

// run_results returns the results of four sums, and adds their numbers to total.
Results run_results(const vec4 sum, const Extras extras, const bool exact, inout vec4 total) {
    const Values v = values(sum, extras);
    Results words = Results(run_words(v.c, exact), uvec4(0), uvec4(0));
    total += v.c;
    if (KEEP_X) {
        words.x = run_words(v.x, exact);
        total += v.x;
    }
    if (KEEP_S) {
        words.s = run_words(v.s, exact);
    }
    return words;
}

// put_run writes a run to C, and to X and S.
#define PUT_RUN(put, to, at)                       \
    if (RUN_16) {                                  \
        put(at, uvec4(low.to.xy, high.to.xy), 8);  \
    } else {                                       \
        put(at, low.to, RUN_WIDTH);                \
        if (RUN == 8) {                            \
            put(at + 4, high.to, 4);               \
        }                                          \
    }

void put_run(const uint batch, const uint row, const uint col, const Results low, const Results high) {
    if (KEEP_X) {
        PUT_RUN(put_x, x, ROW_AT(x, batch, row) + col)
    }
    if (KEEP_S) {
        PUT_RUN(put_s, s, ROW_AT(s, batch, row) + col)
    }
    PUT_RUN(put_c, c, ROW_AT(c, batch, row) + col)
}

float element_of(const vec4 low, const vec4 high, const uint e) {
    const vec4 v = e < 4 ? low : high;
    const vec2 pair = (e & 2) == 0 ? v.xy : v.zw;
    return (e & 1) == 0 ? pair.x : pair.y;
}

// STORE_DIRECT(sum, w, row, col) is what STORE_SUMS is (lib/gemm_sums.glsl), with DEALT. As in
// lib/gemm_results.glsl, numbers are rounded faster than what may be a NaN.
#define STORE_DIRECT(sum, w, row, col)                                                    \
    if (PARTIAL) {                                                                        \
        w.batch += w.split * (gl_NumWorkGroups.z / p.splits);                             \
    }                                                                                     \
    vec4 total = vec4(0.0);                                                               \
    if (row + SUBGROUP_M <= p.m && col + SUBGROUP_N <= p.n) {                             \
        STORE_RUNS(sum, w.batch, row, col, true, !RUN_ROUNDED)                            \
    } else {                                                                              \
        STORE_RUNS(sum, w.batch, row, col, false, !RUN_ROUNDED)                           \
    }                                                                                     \
    if (RUN_ROUNDED && subgroupAny(!is_number(total.x + total.y + total.z + total.w))) {  \
        STORE_RUNS(sum, w.batch, row, col, false, true)                                   \
    }

// STORE_RUNS stores them once; whole says that all are within C.
#define STORE_RUNS(sum, batch, row, col, whole, exact)                                 \
    RunExtras extras[RUN_READS ? RUNS : 1];                                            \
    [[unroll]] for (uint i = 0; RUN_READS && i < RUNS; i++) {                          \
        if (whole || row + run_row(i) < p.m && col + run_col(i) + RUN <= p.n) {        \
            extras[i] = fetch_run(batch, row + run_row(i), col + run_col(i));          \
        }                                                                              \
    }                                                                                  \
    [[unroll]] for (uint i = 0; i < RUNS; i++) {                                       \
        RunExtras both = RunExtras(NO_EXTRAS, NO_EXTRAS);                              \
        if (RUN_READS) {                                                               \
            both = extras[i];                                                          \
        }                                                                              \
        const vec4 low_sums = RUN_SUMS(sum, i, 0);                                     \
        const vec4 high_sums = RUN == 8 ? RUN_SUMS(sum, i, 4) : vec4(0.0);             \
        const Results low = run_results(low_sums, both.low, exact, total);             \
        Results high = low;                                                            \
        if (RUN == 8) {                                                                \
            high = run_results(high_sums, both.high, exact, total);                    \
        }                                                                              \
        const uint y = row + run_row(i);                                               \
        const uint x = col + run_col(i);                                               \
        if (whole || y < p.m && x + RUN <= p.n) {                                      \
            put_run(batch, y, x, low, high);                                           \
        } else if (y < p.m) {                                                          \
            [[dont_unroll]] for (uint e = 0; e < RUN && x + e < p.n; e++) {            \
                finish(batch, y, x + e, vec4(element_of(low_sums, high_sums, e)), 1);  \
            }                                                                          \
        }                                                                              \
    }
