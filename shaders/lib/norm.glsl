// norm: the common part of the kernels of layer normalization: the division of a row of
// p.cols elements among a team of invocations, its weights, and sums over it.
//
// Invocation `lane` of a team of TEAM has the vectors lane, lane + TEAM, … of a row, VEC
// elements each. It keeps LOADS of them in registers; if LOADS is 0, it reads all of them
// from memory each time.
//
// The includer includes lib/norm_constants.glsl, lib/element.glsl and lib/vec16.glsl
// first and declares `p` with cols and w_offset, and COLUMN_BUFFERS of W.

const bool WIDE = LOADS == 0;
const uint HELD = WIDE ? 1 : LOADS;  // vectors in registers

// Arrays have the host's largest LOADS; elements beyond HELD are never used.
const uint MAX_LOADS = 4;

// The part of the weight, or of the bias, that an invocation keeps.
struct Weights { vec4 quads[MAX_LOADS * QUADS]; };

shared vec3 partial[WORKGROUP_SIZE];

#include "reduce.glsl"

// lane_of_team and first_row, and the distance of rows of one team.
uint lane_of_team() { return SUBGROUP_TEAM ? gl_SubgroupInvocationID : gl_LocalInvocationIndex; }

uint first_row() {
    return SUBGROUP_TEAM ? gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID : gl_WorkGroupID.x;
}

uint row_step() {
    return SUBGROUP_TEAM ? gl_NumWorkGroups.x * gl_NumSubgroups : gl_NumWorkGroups.x;
}

// loads returns the largest number of vectors of an invocation.
uint loads() { return WIDE ? (p.cols + TEAM * VEC - 1) / (TEAM * VEC) : LOADS; }

// rest returns the number of elements of a row from column c on, 0 past its end.
uint rest(const uint c) {
    if (EXACT) {
        return VEC;
    }
    return c < p.cols ? p.cols - c : 0;
}

// COLUMNS makes functions of the weight w, or of the bias b:
//
//     weights       returns the weights of columns c to c+3, 0 past the end
//     hold_weights  returns the weights of the invocation's columns, which are the same for all rows
//     weights_of    returns the weights of quad q of vector l, which begins at column c
#define COLUMNS(weight_at, weights, hold_weights, weights_of, w)                                                                  \
    float weight_at(const uint c) {                                                                                               \
        return c < p.cols ? (WEIGHT_F32 ? w##_f32[p.w##_offset + c] : WIDEN(w##_elem[p.w##_offset + c])) : 0.0;                   \
    }                                                                                                                             \
    vec4 weights(const uint c) {                                                                                                  \
        if (WEIGHT_ALIGNED && (EXACT || c + 4 <= p.cols)) {                                                                       \
            const uint at = (p.w##_offset + c) / 4;                                                                               \
            return WEIGHT_F32 ? w##_f32x4[at] : widen(w##_elem4[at]);                                                             \
        }                                                                                                                         \
        return vec4(weight_at(c), weight_at(c + 1), weight_at(c + 2), weight_at(c + 3));                                          \
    }                                                                                                                             \
    Weights hold_weights() {                                                                                                      \
        Weights w;                                                                                                                \
        [[unroll]] for (uint i = 0; i < HELD * QUADS; i++) {                                                                      \
            w.quads[i] = WIDE || !HOLD_WEIGHTS ? vec4(0.0) : weights((lane_of_team() + i / QUADS * TEAM) * VEC + i % QUADS * 4);  \
        }                                                                                                                         \
        return w;                                                                                                                 \
    }                                                                                                                             \
    vec4 weights_of(const Weights held, const uint l, const uint c, const uint q) {                                               \
        return WIDE || !HOLD_WEIGHTS ? weights(c + 4 * q) : held.quads[l * QUADS + q];                                            \
    }

COLUMNS(weight_at, weights, hold_weights, weights_of, w)

// apart returns s - from; s for RMSNorm, which subtracts nothing. It is precise: in another order
// of differences and sums, which a compiler may choose, its purpose would be lost.
vec4 apart(const vec4 s, const float from) {
    if (!CENTERED) {
        return s;
    }
    precise const vec4 d = s - from;
    return d;
}

// within returns x with 0 for the columns from c on that are past the end.
vec4 within(const vec4 x, const uint c) {
    if (EXACT) {
        return x;
    }
    return mix(vec4(0.0), x, lessThan(uvec4(c, c + 1, c + 2, c + 3), uvec4(p.cols)));
}
