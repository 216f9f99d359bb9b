// norm_bwd: gradients of norm_fwd. With s the normalized input, for each row
//
//     z  = (s - mean) * rstd
//     g  = dy * w
//     ds = rstd * (g - mean(g) - z * mean(g * z)) + dsum     mean(g) is left out for RMSNorm
//     dw = sum over rows of dy * z
//     db = sum over rows of dy                               with BIAS
//
//     s, dy, dsum, dx, dresidual  (rows, cols)  ELEM, row strides, last axis contiguous
//     w                           (cols)        f32 or ELEM, contiguous
//     mean, rstd                  (rows)        f32, contiguous
//     parts                       (workgroups, cols rounded up to 4)  f32: dw; from a multiple of 16 rows on db
//
// The given mean is rounded. If neighbouring float32 numbers are as far apart as the
// elements of a row, its error is up to one deviation. So in float32 the mean of z, which
// should be 0, is subtracted from z: one more sum, but no pass. That mean is at most 1, and
// costs g * z a bit. Elements of 16 bits are too coarse for this problem.
//
// dx is ds, and so is dresidual; some callers want it in memory of its own.
//
// A team sums dw and db of its rows in registers, or with LOADS 0 in its workgroup's row of parts.
// The teams of a workgroup are then added in order, and sum_rows adds the workgroups: no
// atomics, the same bits on every run.
//
// Dispatch: any number of workgroups; each takes rows in turn.
#version 450

#include "lib/norm_constants.glsl"
layout(constant_id = 11) const bool WRITE_DRESIDUAL = false;
layout(constant_id = 12) const bool AHEAD = true;  // a row is loaded before the one before it is computed
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint rows;
    uint cols;
    ROW_STRIDE(s)  // elements, like all that follow
    ROW_STRIDE(dy)
    ROW_STRIDE(dsum)
    ROW_STRIDE(dx)
    ROW_STRIDE(dresidual)
    uint w_offset;
    uint mean_offset;
    uint rstd_offset;
} p;

#include "lib/vec16.glsl"

READ16(0, S, s)
READ16(1, DY, dy)
READ16(2, DSum, dsum)
COLUMN_BUFFERS(3, W, w)
layout(binding = 4, scalar) readonly buffer Mean { float mean_in[]; };
layout(binding = 5, scalar) readonly buffer Rstd { float rstd_in[]; };
WRITE16(6, DX, dx)
WRITE16(7, DResidual, dresidual)
layout(binding = 8, scalar) buffer Parts { vec4 parts[]; };

#include "lib/norm.glsl"

const bool RECENTERED = CENTERED && VEC == 4;  // the mean of z is taken off z

shared vec4 staged[WORKGROUP_SIZE];

// A row, or the part of it that an invocation keeps.
struct Row {
    float mean;
    float rstd;
    uvec4 s[MAX_LOADS];
    uvec4 dy[MAX_LOADS];
};

// load_row loads a row, if it exists.
Row load_row(const uint row) {
    Row r;
    const bool exists = row < p.rows;
    r.rstd = exists ? rstd_in[p.rstd_offset + row] : 0.0;
    r.mean = CENTERED && exists ? mean_in[p.mean_offset + row] : 0.0;
    [[unroll]] for (uint l = 0; l < HELD; l++) {
        r.s[l] = uvec4(0);
        r.dy[l] = uvec4(0);
        if (!WIDE && exists) {
            const uint c = (lane_of_team() + l * TEAM) * VEC;
            r.s[l] = load_s(p.s_offset + row * p.s_stride + c, rest(c));
            r.dy[l] = load_dy(p.dy_offset + row * p.dy_stride + c, rest(c));
        }
    }
    return r;
}

// parts_at returns the index of column c in the workgroup's row of parts.
uint parts_at(const uint c) { return gl_WorkGroupID.x * ((p.cols + 3) / 4) + c / 4; }

#ifdef BIAS
// bias_parts_at returns the index of column c in the workgroup's row of sums of db.
uint bias_parts_at(const uint c) { return parts_at(c) + (gl_NumWorkGroups.x + 15) / 16 * 16 * ((p.cols + 3) / 4); }
#endif

// normalized returns z of four columns from c on, with the given mean; 0 past the end.
vec4 normalized(const vec4 s, const float mean, const float rstd, const uint c) {
    const vec4 z = apart(s, mean) * rstd;
    return CENTERED ? within(z, c) : z;
}

// WRITE_PARTS makes write_parts, which sums quad q of vector l over the teams of the workgroup.
// Every invocation of the workgroup calls it. Staged is read, by an earlier call, before it is
// written, and written before it is read.
#define WRITE_PARTS(write_parts, parts_at)                                            \
    void write_parts(const uint lane, const uint l, const uint q, const vec4 sum) {   \
        if (!SUBGROUP_TEAM) {                                                         \
            const uint c = (lane + l * TEAM) * VEC + 4 * q;                           \
            if (c < p.cols) {                                                         \
                parts[parts_at(c)] = sum;                                             \
            }                                                                         \
            return;                                                                   \
        }                                                                             \
        barrier();                                                                    \
        staged[gl_SubgroupID * TEAM + lane] = sum;                                    \
        barrier();                                                                    \
        const uint c = (lane + l * TEAM) * VEC + 4 * q;                               \
        if (gl_SubgroupID == 0 && c < p.cols) {                                       \
            vec4 total = sum;                                                         \
            for (uint t = 1; t < gl_NumSubgroups; t++) {                              \
                total += staged[t * TEAM + lane];                                     \
            }                                                                         \
            parts[parts_at(c)] = total;                                               \
        }                                                                             \
    }

WRITE_PARTS(write_parts, parts_at)
#ifdef BIAS
WRITE_PARTS(write_bias_parts, bias_parts_at)
#endif

// ADD adds x to quad q of vector l, which begins at column c, of dw or db.
#define ADD(dw, parts_at, l, q, c, x)         \
    if (!WIDE) {                              \
        dw[(l) * QUADS + (q)] += x;           \
    } else if ((c) + 4 * (q) < p.cols) {      \
        parts[parts_at((c) + 4 * (q))] += x;  \
    }

void main() {
    const uint lane = lane_of_team();
    const float scale = 1.0 / float(p.cols);
    vec4 dw[MAX_LOADS * QUADS];
    [[unroll]] for (uint i = 0; i < HELD * QUADS; i++) {
        dw[i] = vec4(0.0);
    }
#ifdef BIAS
    vec4 db[MAX_LOADS * QUADS];
    [[unroll]] for (uint i = 0; i < HELD * QUADS; i++) {
        db[i] = vec4(0.0);
    }
#endif
    if (WIDE) {
        for (uint c = lane * VEC; c < p.cols; c += TEAM * VEC) {
            [[unroll]] for (uint q = 0; q < QUADS; q++) {
                if (c + 4 * q < p.cols) {
                    parts[parts_at(c + 4 * q)] = vec4(0.0);
#ifdef BIAS
                    parts[bias_parts_at(c + 4 * q)] = vec4(0.0);
#endif
                }
            }
        }
    }
    const Weights w = hold_weights();
    uint row = first_row();
    Row next;
    if (AHEAD) {
        next = load_row(row);
    }
    while (row < p.rows) {
        Row r;
        const uint this_row = row;
        row += row_step();
        if (AHEAD) {
            r = next;
            next = load_row(row);  // its loads wait while this row is computed
        } else {
            r = load_row(this_row);
        }
        const uint s_at = p.s_offset + this_row * p.s_stride;
        const uint dy_at = p.dy_offset + this_row * p.dy_stride;
        vec4 sum_g = vec4(0.0);
        vec4 sum_gz = vec4(0.0);
        vec4 sum_z = vec4(0.0);
        for (uint l = 0; l < loads(); l++) {
            const uint c = (lane + l * TEAM) * VEC;
            const uvec4 s = WIDE ? load_s(s_at + c, rest(c)) : r.s[l];
            const uvec4 dy = WIDE ? load_dy(dy_at + c, rest(c)) : r.dy[l];
            [[unroll]] for (uint q = 0; q < QUADS; q++) {
                const vec4 z = normalized(quad(s, q), r.mean, r.rstd, c + 4 * q);
                const vec4 d = quad(dy, q);  // 0 past the end
#ifdef BIAS
                ADD(db, bias_parts_at, l, q, c, d)
#endif
                const vec4 g = d * weights_of(w, l, c, q);
                sum_g += g;
                sum_gz += g * z;
                if (RECENTERED) {
                    sum_z += z;
                } else {
                    ADD(dw, parts_at, l, q, c, d * z)
                }
            }
        }
        vec3 means = vec3(0.0, dot(sum_gz, vec4(1.0)), 0.0);  // of g, g * z and z
        if (RECENTERED) {
            means = team_sum(vec3(dot(sum_g, vec4(1.0)), means.y, dot(sum_z, vec4(1.0)))) * scale;
            means.y -= means.x * means.z;
        } else if (CENTERED) {
            means.xy = team_sum(vec2(dot(sum_g, vec4(1.0)), means.y)) * scale;
        } else {
            means.y = team_sum(means.y) * scale;
        }
        for (uint l = 0; l < loads(); l++) {
            const uint c = (lane + l * TEAM) * VEC;
            const uvec4 s = WIDE ? load_s(s_at + c, rest(c)) : r.s[l];
            const uvec4 dy = WIDE ? load_dy(dy_at + c, rest(c)) : r.dy[l];
            const uvec4 more = RESIDUAL ? load_dsum(p.dsum_offset + this_row * p.dsum_stride + c, rest(c)) : uvec4(0);
            vec4 dx[2];
            [[unroll]] for (uint q = 0; q < QUADS; q++) {
                vec4 z = normalized(quad(s, q), r.mean, r.rstd, c + 4 * q);
                const vec4 d = quad(dy, q);
                if (RECENTERED) {
                    z -= means.z;
                    ADD(dw, parts_at, l, q, c, d * z)
                }
                const vec4 g = d * weights_of(w, l, c, q);
                dx[q] = (g - means.x - z * means.y) * r.rstd + quad(more, q);
            }
            const uvec4 packed = pack(dx[0], dx[QUADS - 1]);
            store_dx(p.dx_offset + this_row * p.dx_stride + c, rest(c), packed);
            if (WRITE_DRESIDUAL) {
                store_dresidual(p.dresidual_offset + this_row * p.dresidual_stride + c, rest(c), packed);
            }
        }
    }
    if (!WIDE) {
        [[unroll]] for (uint i = 0; i < HELD * QUADS; i++) {
            write_parts(lane, i / QUADS, i % QUADS, dw[i]);
#ifdef BIAS
            write_bias_parts(lane, i / QUADS, i % QUADS, db[i]);
#endif
        }
    }
}
