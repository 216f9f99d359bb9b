// normlinear: a product of few rows with a normalization before it and, with GLU, a gated linear unit behind it.
//
//     s[r,:] = round(x + residual)            to ELEM with RESIDUAL; else x
//     y[r,j] = rstd[r] * sum over i of s[r,i] * norm_w[i] * w[j,i] + bias[j]
//     rstd[r] = 1 / sqrt(mean(s[r,:]^2) + eps)
//
// With GLU w and bias have 2n rows, and y[r,j] is a(g) * u of what rows j and n + j give, a as in lib/activation.glsl.
//
//     x, residual, sum  (ROWS, k)       ELEM, row strides, last axis contiguous; sum is s
//     norm_w            (k)             f32
//     w                 (n or 2n, k)    ELEM, row stride
//     bias              (n or 2n)       f32
//     y                 (ROWS, n)       FORMAT, row stride
//
// An invocation has LOADS rows of w, half of them gates with GLU. The TEAM invocations that share these rows take 16 bytes
// of k in turn. All loads of w of STEPS are in flight at once. The rows' factor rstd waits for the end: squares are
// added up beside the products, by every team. Sums of a team meet in shared memory, in a fixed order.
//
// Dispatch: any number of workgroups; each takes blocks of LOADS rows for each team in turn. The first writes sum.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint TEAM = 128;       // a power of two
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint LOADS = 4;        // even with GLU
layout(constant_id = 4) const uint STEPS = 1;        // vectors of k that are loaded at once
layout(constant_id = 5) const uint TOGETHER = 8;     // sums of an invocation that meet at a time, a power of two up to TEAM
layout(constant_id = 6) const bool GLU = false;
layout(constant_id = 7) const uint ACTIVATION = 0;
layout(constant_id = 8) const bool RESIDUAL = false;
layout(constant_id = 9) const bool BIAS = false;
layout(constant_id = 10) const uint FORMAT = 0;      // of y, lib/formats.glsl
layout(constant_id = 11) const bool ALIGNED = true;  // offsets and strides of all tensors but y and bias are multiples of VEC
layout(constant_id = 12) const bool WHOLE = true;    // so is k
layout(local_size_x_id = 0) in;

const uint SILU = 0;
const uint GELU = 1;
const uint GELU_TANH = 2;

// Where a tensor lies: its first element, and the elements from a row to the next.
struct Place {
    uint offset, stride;
};

layout(push_constant, scalar) uniform Params {
    uint k;
    uint n;
    float eps;
    Place x;  // elements, like all that follow
    Place residual;
    Place w;
    Place y;
    Place sum;
    uint norm_w_offset;
    uint bias_offset;
} p;

#include "lib/vec16.glsl"
#include "lib/formats.glsl"
#include "lib/activation.glsl"

READ16(0, X, x)
READ16(1, Residual, residual)
layout(binding = 2, scalar) readonly buffer NormW { float norm_w[]; };
layout(binding = 2, scalar) readonly buffer NormW4 { vec4 norm_w4[]; };
READ16(3, W, w)
layout(binding = 4, scalar) readonly buffer Bias { float bias[]; };
layout(binding = 5, scalar) writeonly buffer Y { float y32[]; };
layout(binding = 5, scalar) writeonly buffer Y16 { uint16_t y16[]; };
WRITE16(6, Sum, sum)

const uint TEAMS = WORKGROUP_SIZE / TEAM;
const uint COLS = GLU ? LOADS / 2 : LOADS;     // elements of a row of y of a team
const uint SUMS = ROWS * (LOADS + 1);          // the last of a row is of squares
const uint SHARE = TEAM / TOGETHER;            // of a team, that add up a sum
const uint PARTS_LD = WORKGROUP_SIZE + SHARE;  // so that sums start in different banks

shared float parts[TOGETHER * PARTS_LD];
shared float totals[TEAMS * SUMS];

uint at(const Place place, const uint row, const uint i) { return place.offset + row * place.stride + i; }

// Elements i to i + VEC - 1, as far as n reaches. A branch for what is not whole would be compiled for every load.
#define VECTOR(name, i, n) (WHOLE && ALIGNED ? (n) > 0 ? name##16[(i) / VEC] : uvec4(0) : load_##name(i, n))

// row_of_w returns where row number c of w of the invocations that have columns from col on begins.
uint row_of_w(const uint col, const uint c) {
    return at(p.w, min(col + c % COLS, p.n - 1) + c / COLS * p.n, 0);
}

vec4 norm_weights(const uint i, const uint n) {
    const uint first = p.norm_w_offset + i;
    if (ALIGNED && (WHOLE ? n > 0 : n >= 4)) {
        return norm_w4[first / 4];
    }
    vec4 v = vec4(0.0);
    [[unroll]] for (uint e = 0; e < 4; e++) {
        if (e < n) {
            v[e] = norm_w[first + e];
        }
    }
    return v;
}

uint left(const uint i) { return p.k > i ? p.k - i : 0; }

// row_of returns the elements from i on of row r, and writes them to sum if the invocation is to.
uvec4 row_of(const uint r, const uint i, const bool writes) {
    const uint n = left(i);
    const uvec4 x = VECTOR(x, at(p.x, r, i), n);
    if (!RESIDUAL) {
        return x;
    }
    const uvec4 more = VECTOR(residual, at(p.residual, r, i), n);
    const uvec4 s = pack(quad(x, 0) + quad(more, 0), quad(x, QUADS - 1) + quad(more, QUADS - 1));
    if (writes && n > 0) {
        store_sum(at(p.sum, r, i), n, s);
    }
    return s;
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

float biased(const float x, const uint j) { return BIAS ? x + bias[p.bias_offset + j] : x; }

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
                    const uvec4 row = row_of(r, from, block == 0 && team == 0);
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
            const float rstd = inversesqrt(totals[first + LOADS] / float(p.k) + p.eps);
            float v = biased(totals[first + i % COLS] * rstd, j);
            if (GLU) {
                v = activated(vec4(v)).value.x * biased(totals[first + COLS + i % COLS] * rstd, p.n + j);
            }
            if (FORMAT == FORMAT_F32) {
                y32[at(p.y, r, j)] = v;
            } else {
                y16[at(p.y, r, j)] = uint16_t(narrow_to(FORMAT, v));
            }
        }
    }
}
