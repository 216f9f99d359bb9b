// xent_rows: cross entropy of rows of logits, and the gradient by them in their place.
//
//     lse[r]    = log(sum over c of exp(x[r,c]))
//     loss[r]   = lse - (1 - smoothing) * x[r,label] - smoothing * mean(x[r,:]) + z_loss * lse^2
//     dx[r,c]   = totals[0] * (exp(x[r,c] - lse) * (1 + 2 * z_loss * lse) - (1 - smoothing) * (c == label)
//                 - smoothing / vocabulary)
//
//     x       (rows, vocabulary)  FROM_FORMAT, row stride, last axis contiguous
//     dx      (rows, vocabulary)  TO_FORMAT, in the memory of x, each row where the row of x begins
//     labels  (rows)              i32; loss, lse  (rows)  f32; all contiguous
//     totals  (2)                 f32, of xent_total
//
// A row whose label is ignore has a loss and a gradient of 0. Of any other label outside of the
// vocabulary both are NaN: no memory is read by it.
//
// A workgroup has a row. Each invocation keeps the largest of its logits and the sum of exp(x - largest),
// and a tree merges these: the same bits on every run. The gradient reads the row once more.
// Where TO_FORMAT is shorter, dx of a tile of the row lies where x of the tile and of those before it was.
//
// Dispatch: any number of workgroups; each takes rows in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;  // a power of two
layout(constant_id = 1) const uint VEC = 8;
layout(constant_id = 2) const bool ALIGNED = true;
layout(constant_id = 3) const uint FROM_FORMAT = 0;
layout(constant_id = 4) const uint TO_FORMAT = 0;
layout(constant_id = 5) const bool GRADIENT = false;
layout(constant_id = 6) const bool WRITE_LSE = false;
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint rows;
    uint vocabulary;
    int ignore_label;
    float smoothing;
    float z_loss;
    ROW_STRIDE(x)  // elements, like all that follow
    ROW_STRIDE(dx)
    uint labels_offset;
    uint losses_offset;
    uint lse_offset;
} p;

#include "lib/any16.glsl"

ANY16(0, , X, x)
LOAD_ANY16(x, FROM_FORMAT)
STORE_ANY16(x, TO_FORMAT)
layout(binding = 1, scalar) readonly buffer Labels { int labels[]; };
layout(binding = 2, scalar) readonly buffer Totals { float totals[]; };
layout(binding = 3, scalar) writeonly buffer Losses { float losses[]; };
layout(binding = 4, scalar) writeonly buffer LSE { float lse_out[]; };

const float LOWEST = -3.4028234663852886e38;  // finite: -inf - LOWEST is -inf, where -inf - -inf is NaN

// The largest of some logits, the sum of exp(x - largest) and the sum of x.
struct State { float most, sum, total; };

shared vec3 states[WORKGROUP_SIZE];

// merged returns the State of all logits of two. With s of none it is the other.
State merged(const State s, const State t) {
    const float most = max(s.most, t.most);
    return State(most, s.sum * exp(s.most - most) + t.sum * exp(t.most - most), s.total + t.total);
}

// among returns x, with -inf for columns from c on that are past the end.
vec4 among(const vec4 x, const uint c) {
    return mix(vec4(uintBitsToFloat(0xff800000u)), x, lessThan(uvec4(c, c + 1, c + 2, c + 3), uvec4(p.vocabulary)));
}

uint rest(const uint c) { return c < p.vocabulary ? p.vocabulary - c : 0; }

float largest(const vec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }

State state_of(const Floats x, const uint c) {
    const vec4 a = among(x.a, c);
    const vec4 b = among(x.b, c + 4);
    const float most = max(LOWEST, QUADS == 2 ? max(largest(a), largest(b)) : largest(a));
    vec4 sum = exp(a - most);
    vec4 total = x.a;  // past the end it is 0
    if (QUADS == 2) {
        sum += exp(b - most);
        total += x.b;
    }
    return State(most, dot(sum, vec4(1.0)), dot(total, vec4(1.0)));
}

// row_state returns the State of a row to every invocation of the workgroup.
State row_state(const uint at) {
    const uint tid = gl_LocalInvocationIndex;
    State s = State(LOWEST, 0.0, 0.0);
    for (uint c = tid * VEC; c < p.vocabulary; c += WORKGROUP_SIZE * VEC) {
        s = merged(s, state_of(widened(FROM_FORMAT, load_x(at + c, rest(c))), c));
    }
    barrier();  // states read, for the row before, before they are written
    states[tid] = vec3(s.most, s.sum, s.total);
    for (uint size = WORKGROUP_SIZE / 2; size > 0; size /= 2) {
        barrier();  // states written before they are read
        if (tid < size) {
            const vec3 a = states[tid];
            const vec3 b = states[tid + size];
            const State both = merged(State(a.x, a.y, a.z), State(b.x, b.y, b.z));
            states[tid] = vec3(both.most, both.sum, both.total);
        }
    }
    barrier();  // the state of all is written before it is read
    return State(states[0].x, states[0].y, states[0].z);
}

// logit returns one element of a row.
float logit(const uint at, const uint c) {
    return widened(FROM_FORMAT, load_x(at + c, 1)).a.x;
}

void main() {
    for (uint row = gl_WorkGroupID.x; row < p.rows; row += gl_NumWorkGroups.x) {
        const uint at = p.x_offset + row * p.x_stride;
        const int label = labels[p.labels_offset + row];
        const bool counts = label != p.ignore_label;
        const bool right = !counts || uint(label) < p.vocabulary;
        const float chosen = counts && right ? logit(at, uint(label)) : 0.0;
        const State s = row_state(at);  // its barriers are behind the load of chosen
        const float lse = s.most + log(s.sum);
        const float wrong = right ? 0.0 : uintBitsToFloat(0x7fc00000u);
        if (gl_LocalInvocationIndex == 0) {
            float loss = (lse - chosen) + p.z_loss * lse * lse;
            if (p.smoothing != 0.0) {
                loss += p.smoothing * (chosen - s.total / float(p.vocabulary));
            }
            losses[p.losses_offset + row] = counts ? loss + wrong : 0.0;
            if (WRITE_LSE) {
                lse_out[p.lse_offset + row] = lse;
            }
        }
        if (!GRADIENT) {
            continue;
        }
        const float factor = counts ? totals[0] + wrong : 0.0;
        const float weight = 1.0 + 2.0 * p.z_loss * lse;
        const float even = p.smoothing / float(p.vocabulary);
        for (uint first = 0; first < p.vocabulary; first += WORKGROUP_SIZE * VEC) {
            const uint c = first + gl_LocalInvocationIndex * VEC;
            const Floats x = widened(FROM_FORMAT, load_x(at + c, rest(c)));
            if (FROM_FORMAT != TO_FORMAT) {
                memoryBarrierBuffer();
                barrier();  // x of the tile is read before dx is written over it
            }
            const uvec4 columns = uvec4(c, c + 1, c + 2, c + 3);
            const vec4 one = vec4(1.0 - p.smoothing);
            Floats d = ZEROS;
            if (counts) {  // else the logits do not matter, and 0 times an infinity would be NaN
                d.a = factor * (exp(x.a - lse) * weight - mix(vec4(0.0), one, equal(columns, uvec4(label))) - even);
                d.b = factor * (exp(x.b - lse) * weight - mix(vec4(0.0), one, equal(columns + 4, uvec4(label))) - even);
            }
            store_x(p.dx_offset + row * p.dx_stride + c, rest(c), narrowed(TO_FORMAT, d));
        }
    }
}
