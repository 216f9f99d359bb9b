// norm_fwd: LayerNorm or RMSNorm of rows.
//
//     s       = x + residual              rounded to ELEM, if there is a residual; else x
//     mean[r] = mean(s[r,:])              0 for RMSNorm
//     rstd[r] = 1 / sqrt(mean((s[r,:] - mean[r])^2) + eps)
//     y[r,c]  = (s[r,c] - mean[r]) * rstd[r] * w[c] + b[c]      with BIAS, else without b
//
//     x, residual, sum, y  (rows, cols)  ELEM, row strides, last axis contiguous
//     w, b                 (cols)        f32 or ELEM, contiguous
//     mean, rstd           (rows)        f32, contiguous, saved for the backward pass
//
// A row stays in the registers of its team, a subgroup or the workgroup, from the first sum
// to y. The mean is summed from the differences to the first element. A sum of the elements
// themselves is rounded, which matters if they are large against their differences, and a
// row of equal elements would differ from its mean.
//
// In float32 even the nearest number to the mean is too far away, if neighbouring numbers
// are as far apart as the elements. So the mean is high + low there. The first element may
// be far from all others, so the sum of the differences from high + low corrects low.
// Elements of 16 bits are too coarse for this problem.
//
// Dispatch: any number of workgroups; each takes rows in turn.
#version 450

#include "lib/norm_constants.glsl"
layout(constant_id = 11) const bool SAVE = true;  // write mean and rstd
layout(constant_id = 12) const uint ROWS = 1;     // that a team has at a time, 1 if LOADS is 0
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint rows;
    uint cols;
    float eps;
    ROW_STRIDE(x)  // elements, like all that follow
    ROW_STRIDE(residual)
    ROW_STRIDE(sum)
    ROW_STRIDE(y)
    uint w_offset;
    uint mean_offset;
    uint rstd_offset;
#ifdef BIAS
    uint b_offset;
#endif
} p;

#include "lib/vec16.glsl"

READ16(0, X, x)
READ16(1, Residual, residual)
COLUMN_BUFFERS(2, W, w)
TENSOR16(4, , Sum, sum)
LOAD16(sum)
STORE16(sum)
WRITE16(3, Y, y)
layout(binding = 5, scalar) writeonly buffer Mean { float mean_out[]; };
layout(binding = 6, scalar) writeonly buffer Rstd { float rstd_out[]; };

#include "lib/norm.glsl"

#ifdef BIAS
COLUMN_BUFFERS(7, B, b)
COLUMNS(bias_at, biases, hold_biases, biases_of, b)
#define BIAS_ARGUMENT , const Weights b
#define BIAS_OF(l, c, q) +biases_of(b, l, c, q)
#define HELD_BIAS , b
#else
#define BIAS_ARGUMENT
#define BIAS_OF(l, c, q)
#define HELD_BIAS
#endif

const bool LOW = CENTERED && VEC == 4;  // the mean has a low part

// Arrays are as long as the host lets ROWS be.
const uint MAX_ROWS = 4;

// load_row returns the vector of s at column c, and writes it if it is a sum and the team's own.
uvec4 load_row(const uint row, const uint c, const bool own) {
    const uvec4 x = load_x(p.x_offset + row * p.x_stride + c, rest(c));
    if (!RESIDUAL) {
        return x;
    }
    const uvec4 r = load_residual(p.residual_offset + row * p.residual_stride + c, rest(c));
    const uvec4 s = pack(quad(x, 0) + quad(r, 0), quad(x, QUADS - 1) + quad(r, QUADS - 1));
    if (own) {
        store_sum(p.sum_offset + row * p.sum_stride + c, rest(c), s);
    }
    return s;
}

// load_first returns the first element of s. One invocation has it in registers, but loading
// it again is faster than waiting for that invocation.
float load_first(const uint row) {
    if (!CENTERED) {
        return 0.0;
    }
    const float x = WIDEN(x1[p.x_offset + row * p.x_stride]);
    if (!RESIDUAL) {
        return x;
    }
    const float r = WIDEN(residual1[p.residual_offset + row * p.residual_stride]);
    return quad(pack(vec4(x + r), vec4(0.0)), 0).x;
}

// low_part returns a + b - high, where high is a + b rounded. It is precise: otherwise a
// compiler may simplify it to 0.
float low_part(const float a, const float b, const float high) {
    precise const float low = (a - high) + b;
    return low;
}

// centered returns s - (high + low), where high + low is the mean.
vec4 centered(const vec4 s, const float high, const float low) {
    const vec4 d = apart(s, high);
    return LOW ? apart(d, low) : d;
}

uvec4 load_again(const uint row, const uint c) {
    if (RESIDUAL) {
        return load_sum(p.sum_offset + row * p.sum_stride + c, rest(c));
    }
    return load_x(p.x_offset + row * p.x_stride + c, rest(c));
}

// normalize writes vector l of y, at column c.
void normalize(const uint row, const uint l, const uint c, const uvec4 s, const float high, const float low, const float rstd, const Weights w BIAS_ARGUMENT) {
    vec4 y[2];
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        y[q] = centered(quad(s, q), high, low) * rstd * weights_of(w, l, c, q) BIAS_OF(l, c, q);
    }
    store_y(p.y_offset + row * p.y_stride + c, rest(c), pack(y[0], y[QUADS - 1]));
}

void main() {
    const uint lane = lane_of_team();
    const float scale = 1.0 / float(p.cols);
    const Weights w = hold_weights();
#ifdef BIAS
    const Weights b = hold_biases();
#endif
    for (uint row0 = first_row(); row0 < p.rows; row0 += ROWS * row_step()) {
        uvec4 held[MAX_ROWS * MAX_LOADS];
        float first[MAX_ROWS];
        float high[MAX_ROWS];
        float low[MAX_ROWS];
        // Rows past the last are the last one once more: loads have no condition.
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = row0 + i * row_step();
            first[i] = load_first(min(row, p.rows - 1));
            [[unroll]] for (uint l = 0; l < HELD; l++) {
                if (!WIDE) {
                    held[i * MAX_LOADS + l] = load_row(min(row, p.rows - 1), (lane + l * TEAM) * VEC, row < p.rows);
                }
            }
        }
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            vec4 sum = vec4(0.0);
            for (uint l = 0; l < loads(); l++) {
                const uint c = (lane + l * TEAM) * VEC;
                const uvec4 s = WIDE ? load_row(row0, c, true) : held[i * MAX_LOADS + l];
                [[unroll]] for (uint q = 0; q < QUADS; q++) {
                    sum += within(apart(quad(s, q), first[i]), c + 4 * q);
                }
            }
            const float mean = CENTERED ? team_sum(dot(sum, vec4(1.0))) * scale : 0.0;
            high[i] = first[i] + mean;
            low[i] = LOW ? low_part(first[i], mean, high[i]) : 0.0;
        }
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = row0 + i * row_step();
            vec4 sum = vec4(0.0);
            vec4 squares = vec4(0.0);
            for (uint l = 0; l < loads(); l++) {
                const uint c = (lane + l * TEAM) * VEC;
                const uvec4 s = WIDE ? load_again(row, c) : held[i * MAX_LOADS + l];
                [[unroll]] for (uint q = 0; q < QUADS; q++) {
                    const vec4 d = within(centered(quad(s, q), high[i], low[i]), c + 4 * q);
                    if (LOW) {
                        sum += d;
                    }
                    squares += d * d;
                }
            }
            float variance = dot(squares, vec4(1.0));
            if (LOW) {
                const vec2 moments = team_sum(vec2(dot(sum, vec4(1.0)), variance)) * scale;
                low[i] += moments.x;
                variance = moments.y;
            } else {
                variance = team_sum(variance) * scale;
            }
            const float rstd = 1.0 / sqrt(variance + p.eps);
            if (row >= p.rows) {
                continue;  // the same for the whole team
            }
            for (uint l = 0; l < loads(); l++) {
                const uint c = (lane + l * TEAM) * VEC;
                normalize(row, l, c, WIDE ? load_again(row, c) : held[i * MAX_LOADS + l], high[i], low[i], rstd, w HELD_BIAS);
            }
            if (SAVE && lane == 0) {
                rstd_out[p.rstd_offset + row] = rstd;
                if (CENTERED) {
                    mean_out[p.mean_offset + row] = high[i] + low[i];
                }
            }
        }
    }
}
