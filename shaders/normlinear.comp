// normlinear: a product of few rows with a normalization before it and, with GLU, a gated linear unit behind it.
//
//     y[r,j]  = rstd[r] * sum over i of x[r,i] * norm_w[i] * w[j,i] + bias[j]
//     rstd[r] = 1 / sqrt(mean(x[r,:]^2) + eps)
//
// With GLU w and bias have 2n rows, and y[r,j] is a(g) * u of what rows j and n + j give, a as in lib/activation.glsl.
//
//     x       (ROWS, k)       ELEM, row stride, last axis contiguous
//     norm_w  (k)             f32
//     w       (n or 2n, k)    ELEM, row stride
//     bias    (n or 2n)       f32
//     y       (ROWS, n)       FORMAT, row stride
//
// An invocation has LOADS rows of w, half of them gates with GLU. The TEAM invocations that share these rows take 16 bytes
// of k in turn. All loads of w of STEPS are in flight at once. The rows' factor rstd waits for the end: squares are
// added up beside the products, by every team. Sums of a team meet in shared memory, in a fixed order.
//
// Dispatch: any number of workgroups; each takes blocks of LOADS rows for each team in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint TEAM = 128;       // a power of two
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint LOADS = 4;        // even with GLU
layout(constant_id = 4) const uint STEPS = 1;        // vectors of k that are loaded at once
layout(constant_id = 5) const uint TOGETHER = 8;     // sums of an invocation that meet at a time, a power of two up to TEAM
layout(constant_id = 6) const bool GLU = false;
layout(constant_id = 7) const uint ACTIVATION = 0;
layout(constant_id = 8) const bool BIAS = false;
layout(constant_id = 9) const uint FORMAT = 0;       // of y, lib/formats.glsl
layout(constant_id = 10) const bool ALIGNED = true;  // offsets and strides of all tensors but y and bias are multiples of VEC
layout(constant_id = 11) const bool WHOLE = true;    // so is k
layout(local_size_x_id = 0) in;

#include "lib/normlinear.glsl"

const uint TEAMS = WORKGROUP_SIZE / TEAM;
const uint COLS = GLU ? LOADS / 2 : LOADS;     // elements of a row of y of a team
const uint SUMS = ROWS * (LOADS + 1);          // the last of a row is of squares
const uint SHARE = TEAM / TOGETHER;            // of a team, that add up a sum
const uint PARTS_LD = WORKGROUP_SIZE + SHARE;  // so that sums start in different banks

shared float parts[TOGETHER * PARTS_LD];
shared float totals[TEAMS * SUMS];

// row_of_w returns where row number c of w of the invocations that have columns from col on begins.
uint row_of_w(const uint col, const uint c) {
    return at(p.w, min(col + c % COLS, p.n - 1) + c / COLS * p.n, 0);
}

// totalize adds up the sums of the invocations of a team.
void totalize(const float sums[SUMS], const uint team, const uint lane) {
    const uint tid = gl_LocalInvocationIndex;
    const uint number = lane / SHARE;
    [[unroll]] for (uint first = 0; first < SUMS; first += TOGETHER) {
        barrier();  // parts and totals are read before they are written
        [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
            if (first + i < SUMS) {
                parts[i * PARTS_LD + tid] = sums[first + i];
            }
        }
        barrier();  // parts are written before they are read
        float sum = 0.0;
        for (uint i = 0; i < TOGETHER; i++) {
            sum += parts[number * PARTS_LD + team * TEAM + i * SHARE + lane % SHARE];
        }
        if (SHARE > 1) {
            barrier();  // parts are read before they are written
            parts[tid] = sum;
            barrier();  // parts are written before they are read
            sum = 0.0;
            for (uint i = 0; i < SHARE; i++) {
                sum += parts[team * TEAM + number * SHARE + i];
            }
        }
        if (lane % SHARE == 0 && first + number < SUMS) {
            totals[team * SUMS + first + number] = sum;
        }
    }
    barrier();  // totals are written before they are read
}

void main() {
    const uint team = gl_LocalInvocationIndex / TEAM;
    const uint lane = gl_LocalInvocationIndex % TEAM;
    for (uint block = gl_WorkGroupID.x; block * TEAMS * COLS < p.n; block += gl_NumWorkGroups.x) {
        const uint col = (block * TEAMS + team) * COLS;
        float sums[SUMS];
        [[unroll]] for (uint i = 0; i < SUMS; i++) {
            sums[i] = 0.0;
        }
        [[dont_unroll]] for (uint k0 = lane * VEC; k0 < p.k; k0 += STEPS * TEAM * VEC) {
            uvec4 words[STEPS * LOADS];
            [[unroll]] for (uint i = 0; i < STEPS * LOADS; i++) {
                const uint from = k0 + i / LOADS * (TEAM * VEC);
                words[i] = VECTOR(w, row_of_w(col, i % LOADS) + from, left(from));
            }
            [[unroll]] for (uint s = 0; s < STEPS; s++) {
                const uint from = k0 + s * TEAM * VEC;
                vec4 weights[2];
                [[unroll]] for (uint q = 0; q < QUADS; q++) {
                    weights[q] = norm_weights(from + 4 * q, left(from + 4 * q));
                }
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    const uvec4 row = VECTOR(x, at(p.x, r, from), left(from));
                    [[unroll]] for (uint e = 0; e < VEC; e++) {
                        const float x = quad(row, e / 4)[e % 4];
                        const float by = x * weights[e / 4][e % 4];
                        [[unroll]] for (uint c = 0; c < LOADS; c++) {
                            sums[r * (LOADS + 1) + c] += by * quad(words[s * LOADS + c], e / 4)[e % 4];
                        }
                        sums[r * (LOADS + 1) + LOADS] += x * x;
                    }
                }
            }
        }
        totalize(sums, team, lane);
        for (uint i = lane; i < ROWS * COLS; i += TEAM) {
            const uint r = i / COLS;
            const uint j = col + i % COLS;
            if (j >= p.n) {
                continue;
            }
            const uint first = team * SUMS + r * (LOADS + 1);
            write(r, j, totals[first + LOADS], totals[first + i % COLS], totals[first + COLS * (LOADS / COLS - 1) + i % COLS]);
        }
    }
}
