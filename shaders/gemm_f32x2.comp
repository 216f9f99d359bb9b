// gemm_f32x2: splits float32 operands of a GEMM into float16 parts, scaled row by row.
//
//     x[batch, row, i] = (hi + lo / LO_SCALE) * 2^(e - TOP),  2^e <= max |x[batch, row, :]| < 2^(e+1)
//
//     x      op(A), or op(B) transposed: lib/gemm_floats.glsl
//     panels of hi, lo and e: lib/gemm_panels.glsl
//
// Columns past k are zero. A row with a largest magnitude below 2^-113 has e = -113: a
// larger factor than 2^127 is no float32, and such a row keeps all its bits without one.
// lib/f32x2_far.glsl has the scaling and the errors of parts.
//
// An invocation has pieces of eight elements.
//
// Dispatch: (x, y) with x * y >= groups, a tile being 32 rows of 128 elements.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint DEPTH = 16;  // columns of a k-tile
layout(local_size_x_id = 0) in;

#include "lib/gemm_floats.glsl"
#include "lib/f32x2_far.glsl"

layout(binding = 2, scalar) readonly buffer Amax { uint amax[]; };
layout(binding = 2, scalar) writeonly buffer Panels { uvec4 panels8[]; };

const uint PIECES = 16;             // of a row of the tile
const uint LINE8 = 2 * DEPTH / 8;  // uvec4 of a line of a panel

shared uint exponents[ROWS];  // bits of the largest magnitudes, then exponents

// load_piece returns the eight elements from k on, zeros past the end.
Elems8 load_piece(const Tile t, const uint row, const uint k) {
    const uint at = element_of(t, row, k);
    if (t.source.k_step == 1 && at % 4 == 0 && k + 8 <= p.k) {
        return t.is_a ? Elems8(a4[at / 4], a4[at / 4 + 1]) : Elems8(b4[at / 4], b4[at / 4 + 1]);
    }
    Elems8 x = Elems8(vec4(0.0), vec4(0.0));
    [[unroll]] for (uint e = 0; e < 8; e++) {
        if (k + e < p.k) {
            const float y = load_float(t, at + e * t.source.k_step);
            if (e < 4) {
                x.first[e] = y;
            } else {
                x.second[e - 4] = y;
            }
        }
    }
    return x;
}

void main() {
    const Tile t = this_tile();
    if (!t.exists) {
        return;
    }
    const uint rows = min(t.source.rows - t.row, ROWS);
    if (gl_LocalInvocationIndex < ROWS) {
        exponents[gl_LocalInvocationIndex] = 0;
    }
    barrier();  // exponents are zero before they grow
    for (uint i = gl_LocalInvocationIndex; i < rows * p.chunks; i += WORKGROUP_SIZE) {
        atomicMax(exponents[i % rows], amax[amax_of(t, t.row + i % rows, i / rows)]);
    }
    barrier();  // all amax have been met
    if (gl_LocalInvocationIndex < ROWS) {
        exponents[gl_LocalInvocationIndex] = max(exponents[gl_LocalInvocationIndex] >> 23, TOP);
    }
    barrier();  // exponents written before they are read

    const uint panel8 = t.source.rows * LINE8;
    const uint base = t.source.panels + t.batch * (p.k_tiles + 1) * panel8;
    if (t.tile_k == 0 && gl_LocalInvocationIndex < rows) {
        panels8[base + (t.row + gl_LocalInvocationIndex) * LINE8] = uvec4(exponents[gl_LocalInvocationIndex], 0, 0, 0);
    }
    const bool by_k = t.source.k_step == 1;
    [[unroll]] for (uint n = 0; n < ROWS * PIECES / WORKGROUP_SIZE; n++) {
        const uint i = n * WORKGROUP_SIZE + gl_LocalInvocationIndex;
        const uint row = by_k ? i / PIECES : i % ROWS;  // of the tile; neighbours read neighbours
        const uint k = (t.tile_k * PIECES + (by_k ? i % PIECES : i / ROWS)) * 8;
        if (row < rows && k < p.k_tiles * DEPTH) {
            const Parts8 x = split_far(load_piece(t, t.row + row, k), scale_of(exponents[row]));
            const uint at = base + (1 + k / DEPTH) * panel8 + (t.row + row) * LINE8 + k % DEPTH / 8;
            panels8[at] = x.hi;
            panels8[at + DEPTH / 8] = x.lo;
        }
    }
}
