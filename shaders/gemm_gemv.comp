// gemm_gemv: products with few rows, at the speed at which op(B) comes from memory, in plain float32
// arithmetic, with an epilogue.
//
//     C = epilogue(alpha * op(A) * op(B) + beta * C), batch by batch
//
//     op(A)  (m, k)  ELEM, last axis contiguous; with ONES all of it is 1, and there is no A
//     op(B)  (k, n)  ELEM, from B (n, k) with B_BY_K, else (k, n); likewise
//     C, R, X, S (m, n) OUT_FORMAT, last axis contiguous; lib/gemm_params.glsl has the epilogue
//
// An invocation has the sums of BLOCK_M rows and of some columns over a part of k. The TEAM
// invocations that share these columns take 16 bytes of k in turn. All loads of op(B) of a step are
// in flight at once; rows of A come from the cache, as all teams read them.
//
//     B_BY_K   neighbours in a team load neighbouring bytes of a row of B, and an invocation has COLS rows
//     else     neighbours are of different teams, and have the 16 bytes of a row of B that are their columns
//
// Sums of a team meet in shared memory, in a fixed order. No subgroup has a part in it.
//
// With PARTIAL it writes sums of a part of k, as in lib/gemm_matrix.glsl.
//
// Dispatch: (x, y, batch * splits) with x * y >= tiles.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint TEAM = 128;        // a power of two
layout(constant_id = 2) const uint BLOCK_M = 1;
layout(constant_id = 3) const uint BLOCK_N = 4;       // of WORKGROUP_SIZE / TEAM teams; each has VEC without B_BY_K
layout(constant_id = 4) const uint BLOCK_K = 1024;    // a multiple of TEAM * VEC
layout(constant_id = 5) const uint GROUP_M = 1;       // see lib/gemm_order.glsl
layout(constant_id = 6) const uint TOGETHER = 8;      // sums of an invocation that meet at a time, a power of two up to TEAM
layout(constant_id = 7) const bool B_BY_K = true;     // k is B's contiguous axis
layout(constant_id = 8) const bool ALIGNED = true;    // offsets and strides of A and B are multiples of VEC
layout(constant_id = 9) const bool WHOLE = true;      // so are the lengths of rows of A and B
layout(constant_id = 10) const bool ONES = false;
layout(constant_id = 11) const bool PARTIAL = false;  // writes sums of a part of k
layout(local_size_x_id = 0) in;

#define EPILOGUE_ID 12
#include "lib/vec16.glsl"
#include "lib/formats.glsl"
#include "lib/gemm_params.glsl"

READ16(0, A, a)
READ16(1, B, b)
#define OUT_BINDING 2
#include "lib/gemm_out.glsl"
#include "lib/gemm_order.glsl"
#include "lib/gemm_epilogue.glsl"

const uint TEAMS = WORKGROUP_SIZE / TEAM;
const uint COLS = BLOCK_N / TEAMS;  // of an invocation
const uint SUMS = BLOCK_M * COLS;
const uint STEPS = BLOCK_K / (TEAM * VEC);     // vectors of k that are loaded at once
const uint LOADS = B_BY_K ? COLS : VEC;        // vectors of B for each of them
const uint SHARE = TEAM / TOGETHER;            // of a team, that add up a sum
const uint PARTS_LD = WORKGROUP_SIZE + SHARE;  // so that sums start in different banks

shared float parts[TOGETHER * PARTS_LD];

// place returns the invocation that is number lane of a team.
uint place(const uint team, const uint lane) { return B_BY_K ? team * TEAM + lane : lane * TEAMS + team; }

// Elements i to i + VEC - 1, as far as n reaches, of A and of B. A branch for what is not whole would be
// compiled for every load.
#define VECTOR(name, i, n) (WHOLE ? (n) > 0 ? name##16[(i) / VEC] : uvec4(0) : load_##name(i, n))

// left returns how many elements there are from i to end.
uint left(const uint i, const uint end) { return end > i ? end - i : 0; }

// vector_of_b returns a vector of B, number j of those at k.
uvec4 vector_of_b(const uint base, const uint col, const uint k, const uint end, const uint j) {
    if (B_BY_K) {
        return VECTOR(b, base + min(col + j, p.n - 1) * p.b_stride + k, left(k, end));
    }
    return VECTOR(b, base + (k + j) * p.b_stride + col, k + j < end ? left(col, p.n) : 0);
}

uvec4 vector_of_a(const uint batch, const uint row, const uint k, const uint end) {
    return ONES ? uvec4(0) : VECTOR(a, ROW_AT(a, batch, min(row, p.m - 1)) + k, left(k, end));
}

// What a vector of A has as elements 4q to 4q + 3. Past k, where ONES has no zeros, B has.
vec4 numbers_of_a(const uvec4 v, const uint q) { return ONES ? vec4(1.0) : quad(v, q); }

void main() {
    const Work w = next_work();
    if (!w.exists) {
        return;
    }
    const uint tid = gl_LocalInvocationIndex;
    const uint team = B_BY_K ? tid / TEAM : tid % TEAMS;
    const uint lane = B_BY_K ? tid % TEAM : tid / TEAMS;
    const uint col = w.col + team * COLS;
    const uint base = p.b_offset + w.batch * p.b_stride_b;
    const uint end = min((w.split + 1) * p.split_k, p.k);
    float sums[SUMS];
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        sums[i] = 0.0;
    }
    [[dont_unroll]] for (uint k0 = w.split * p.split_k + lane * VEC; k0 < end; k0 += BLOCK_K) {
        uvec4 words[STEPS * LOADS];
        [[unroll]] for (uint i = 0; i < STEPS * LOADS; i++) {
            words[i] = vector_of_b(base, col, k0 + i / LOADS * (TEAM * VEC), end, i % LOADS);
        }
        [[unroll]] for (uint s = 0; s < STEPS; s++) {
            [[unroll]] for (uint row = 0; row < BLOCK_M; row++) {
                const uvec4 x = vector_of_a(w.batch, w.row + row, k0 + s * TEAM * VEC, end);
                [[unroll]] for (uint e = 0; e < VEC; e++) {
                    const float by = numbers_of_a(x, e / 4)[e % 4];
                    [[unroll]] for (uint c = 0; c < COLS; c++) {
                        // Element e of a vector for each column, or element c of a vector for each k.
                        const uvec4 v = words[s * LOADS + (B_BY_K ? c : e)];
                        const uint at = B_BY_K ? e : c;
                        sums[row * COLS + c] += by * quad(v, at / 4)[at % 4];
                    }
                }
            }
        }
    }
    const uint product = PARTIAL ? w.split * (gl_NumWorkGroups.z / p.splits) + w.batch : w.batch;
    [[unroll]] for (uint first = 0; first < SUMS; first += TOGETHER) {
        barrier();  // parts are read before they are written
        [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
            if (first + i < SUMS) {
                parts[i * PARTS_LD + tid] = sums[first + i];
            }
        }
        barrier();  // parts are written before they are read
        const uint number = lane / SHARE;
        float sum = 0.0;
        for (uint i = 0; i < TOGETHER; i++) {
            sum += parts[number * PARTS_LD + place(team, i * SHARE + lane % SHARE)];
        }
        if (SHARE > 1) {
            barrier();  // parts are read before they are written
            parts[tid] = sum;
            barrier();  // parts are written before they are read
            sum = 0.0;
            for (uint i = 0; i < SHARE; i++) {
                sum += parts[place(team, number * SHARE + i)];
            }
        }
        const uint row = (first + number) / COLS;
        const uint x = (first + number) % COLS;
        if (lane % SHARE == 0 && row < BLOCK_M && w.row + row < p.m && col + x < p.n) {
            finish(product, w.row + row, col + x, vec4(sum), 1);
        }
    }
}
