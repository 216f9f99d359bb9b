// quantize: numbers as elements of 8 bits that share scales (dtype.Quant).
//
//     amax    = max |x| of a unit          of what is no NaN
//     scale   = round(amax / LARGEST)      to float32, or to float16 of q8_0
//     y       = round(x / scale)           ties to even, saturated; 0 if scale is 0
//
//     x      (batch, heads, rows, cols)  ELEM
//     y      as x                        bytes
//     scale  (units)                     f32, f16 of q8_0
//     parts  (units, parts)              the largest magnitude of each part of a unit, as bits
//
// A unit is block_rows rows of a group of group_rows rows, or of q8_0 32 columns of a row. The groups
// are the heads, or one group is all rows. A team of invocations has a unit. Where units are few
// and large, a workgroup has a part of a unit, and there are two steps.
//
// Dispatch: any number of workgroups; each takes units, or parts, in turn.
#version 450
#extension GL_EXT_shader_8bit_storage : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint TEAM = 32;  // invocations, a power of two
layout(constant_id = 2) const uint LOADS = 1;  // vectors of 16 bytes that an invocation keeps in registers; 0: x is read twice
layout(constant_id = 3) const uint FORMAT = 1;
layout(constant_id = 4) const uint STEP = 0;
layout(constant_id = 5) const bool ALIGNED = true;
layout(local_size_x_id = 0) in;

// Where a tensor lies, in elements.
struct Where {
    uint offset;
    uint stride_b;
    uint stride_h;
    uint stride_s;
};

layout(push_constant, scalar) uniform Params {
    uint units;
    uint parts;  // of a unit
    uint heads;
    uint rows;
    uint cols;
    uint group_rows;
    uint block_rows;
    uint block_cols;
    Where x;
    Where y;
    uint scale_offset;
} p;

#include "lib/vec16.glsl"
#include "lib/narrow_f16.glsl"
#include "lib/to_e4m3.glsl"

READ16(0, X, x)
layout(binding = 1, scalar) writeonly buffer Y { uint y_f32[]; };  // of a vector of float32
layout(binding = 1, scalar) writeonly buffer Y8 { uvec2 y_half[]; };
layout(binding = 1, scalar) writeonly buffer Y1 { uint8_t y1[]; };
layout(binding = 2, scalar) writeonly buffer Scale { float scale_f32[]; };
layout(binding = 2, scalar) writeonly buffer Scale1 { uint16_t scale_f16[]; };
layout(binding = 3, scalar) buffer Parts { uint parts[]; };

const uint AMAX = 1;  // STEP, of two; 0: there is one
const uint CAST = 2;

// Arrays have the host's largest LOADS; elements beyond LOADS are never used.
const uint MAX_LOADS = 4;

shared uint partial[WORKGROUP_SIZE];

// A Part is vectors begin to end-1 of a unit, whose first element is at row and col. There are none
// past the last unit.
struct Part {
    uint row;
    uint col;
    uint row_vecs;
    uint begin;
    uint end;
};

Part part_of(const uint job) {
    const uint unit = job / p.parts;
    const uint row_units = (p.cols + p.block_cols - 1) / p.block_cols;
    const uint blocks = (p.group_rows + p.block_rows - 1) / p.block_rows;
    const uint block = unit / row_units % blocks * p.block_rows;
    Part u;
    u.row = unit / row_units / blocks * p.group_rows + block;
    u.col = unit % row_units * p.block_cols;
    u.row_vecs = (p.block_cols + VEC - 1) / VEC;
    const uint vecs = min(p.block_rows, p.group_rows - block) * u.row_vecs;
    const uint share = (vecs + p.parts - 1) / p.parts;
    u.begin = min(job % p.parts * share, vecs);
    u.end = unit < p.units ? min(u.begin + share, vecs) : u.begin;
    return u;
}

// A Place is a vector: n elements, and where they are. There are none past the end of a part.
struct Place {
    uint x;
    uint y;
    uint n;
};

// place_in returns where a column of a row is. The rows count over all heads.
uint place_in(const Where t, const uint row, const uint col) {
    const uint head = row / p.rows;
    return t.offset + head / p.heads * t.stride_b + head % p.heads * t.stride_h + row % p.rows * t.stride_s + col;
}

Place place_of(const Part u, const uint i) {
    const uint row = u.row + i / u.row_vecs;
    const uint col = u.col + i % u.row_vecs * VEC;
    Place at;
    at.x = place_in(p.x, row, col);
    at.y = place_in(p.y, row, col);
    at.n = i < u.end ? p.cols - col : 0;
    return at;
}

// magnitude returns the largest magnitude of a vector as bits. NaN counts as 0, an infinity as the
// largest number.
uint magnitude(const uvec4 v) {
    uvec4 most = uvec4(0);
    [[unroll]] for (uint q = 0; q < QUADS; q++) {
        const uvec4 bits = floatBitsToUint(quad(v, q)) & 0x7fffffffu;
        most = max(most, mix(min(bits, 0x7f7fffffu), uvec4(0), greaterThan(bits, uvec4(0x7f800000u))));
    }
    return max(max(most.x, most.y), max(most.z, most.w));
}

// team_max returns the maximum over the team. Every invocation of the workgroup calls it.
uint team_max(const uint x) {
    const uint at = gl_LocalInvocationIndex;
    const uint lane = at % TEAM;
    partial[at] = x;
    for (uint half_size = TEAM / 2; half_size > 0; half_size /= 2) {
        barrier();  // partial written before it is read
        if (lane < half_size) {
            partial[at] = max(partial[at], partial[at + half_size]);
        }
    }
    barrier();  // the result is written
    const uint most = partial[at - lane];
    barrier();  // the result is read before the next call writes
    return most;
}

#include "lib/quant.glsl"

void store_y(const uint i, const uint n, const uvec4 v, const float inverse) {
    const uvec2 words = uvec2(narrowed(quad(v, 0), inverse), QUADS == 1 ? 0 : narrowed(quad(v, QUADS - 1), inverse));
    if (!ALIGNED || n < VEC) {
        [[unroll]] for (uint e = 0; e < VEC; e++) {
            if (e < n) {
                y1[i + e] = uint8_t(words[e / 4] >> e % 4 * 8);
            }
        }
    } else if (QUADS == 1) {
        y_f32[i / VEC] = words.x;
    } else {
        y_half[i / VEC] = words;
    }
}

void main() {
    const uint lane = gl_LocalInvocationIndex % TEAM;
    const uint teams = WORKGROUP_SIZE / TEAM;
    const uint jobs = p.units * p.parts;
    for (uint first = gl_WorkGroupID.x * teams; first < jobs; first += gl_NumWorkGroups.x * teams) {
        const uint job = first + gl_LocalInvocationIndex / TEAM;
        const Part u = part_of(job);
        uvec4 held[MAX_LOADS];
        uint most = 0;
        if (STEP == CAST) {
            for (uint i = lane; i < p.parts; i += TEAM) {
                most = max(most, parts[job / p.parts * p.parts + i]);
            }
        } else if (LOADS > 0) {
            [[unroll]] for (uint l = 0; l < LOADS; l++) {
                const Place at = place_of(u, u.begin + lane + l * TEAM);
                held[l] = load_x(at.x, at.n);
                most = max(most, magnitude(held[l]));
            }
        } else {
            for (uint i = u.begin + lane; i < u.end; i += TEAM) {
                const Place at = place_of(u, i);
                most = max(most, magnitude(load_x(at.x, at.n)));
            }
        }
        most = team_max(most);
        if (STEP == AMAX) {
            if (lane == 0) {
                parts[job] = most;
            }
            continue;
        }
        float scale = scale_of(uintBitsToFloat(most));
        const uint bits = narrow_f16(min(scale, 515.5));  // 127 times 515.5 is a float16
        const bool writes = lane == 0 && job < jobs && job % p.parts == 0;
        if (FORMAT != Q8_0 && writes) {
            scale_f32[p.scale_offset + job / p.parts] = scale;
        } else if (FORMAT == Q8_0) {
            scale = unpackHalf2x16(bits).x;
            if (writes) {
                scale_f16[p.scale_offset + job] = uint16_t(bits);
            }
        }
        const float inverse = scale > 0.0 ? 1.0 / scale : 0.0;
        if (STEP == 0 && LOADS > 0) {
            [[unroll]] for (uint l = 0; l < LOADS; l++) {
                const Place at = place_of(u, u.begin + lane + l * TEAM);
                store_y(at.y, at.n, held[l], inverse);
            }
        } else {
            for (uint i = u.begin + lane; i < u.end; i += TEAM) {
                const Place at = place_of(u, i);
                store_y(at.y, at.n, load_x(at.x, at.n), inverse);
            }
        }
    }
}
