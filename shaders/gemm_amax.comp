// gemm_amax: the largest magnitudes of rows of float32 operands of a GEMM.
//
//     amax[batch, c, row] = max |x[batch, row, i]| over chunk * c <= i < chunk * (c + 1)
//
//     x     op(A), or op(B) transposed: lib/gemm_floats.glsl
//     amax  bits of a float32; for a row with an Inf or NaN, the bits of that
//
// A workgroup has 32 rows of a chunk. Its invocations read 32 x 32 elements at a time, 32
// neighbours along the contiguous axis.
//
// Dispatch: (x, y) with x * y >= groups; tiles_k is the number of chunks.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;  // a multiple of 32 that divides 1024
layout(local_size_x_id = 0) in;

#include "lib/gemm_floats.glsl"

layout(binding = 2, scalar) writeonly buffer Amax { uint amax[]; };

const uint GROUPS = WORKGROUP_SIZE / 32;
const uint EACH = 32 / GROUPS;  // elements of 32 x 32 that an invocation reads

shared uint tile_amax[ROWS];

void main() {
    const Tile t = this_tile();
    if (!t.exists) {
        return;
    }
    const uint lane = gl_LocalInvocationIndex % 32;
    const uint group = gl_LocalInvocationIndex / 32;
    const bool by_k = t.source.k_step == 1;
    if (gl_LocalInvocationIndex < ROWS) {
        tile_amax[gl_LocalInvocationIndex] = 0;
    }
    uint own[EACH];  // by_k: of rows group, group + GROUPS, ...; else all of row lane
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        own[e] = 0;
    }
    const uint end = min((t.tile_k + 1) * p.chunk, p.k);
    for (uint k0 = t.tile_k * p.chunk; k0 < end; k0 += 32) {
        [[unroll]] for (uint e = 0; e < EACH; e++) {
            const uint across = group + e * GROUPS;
            const uint k = min(k0 + (by_k ? lane : across), end - 1);
            const float x = load_float(t, element_of(t, t.row + (by_k ? across : lane), k));
            own[e] = max(own[e], floatBitsToUint(x) & 0x7fffffffu);  // these are ordered as the floats are, Inf and NaN last
        }
    }
    barrier();  // tile_amax is zero before it grows
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        atomicMax(tile_amax[by_k ? group + e * GROUPS : lane], own[e]);
    }
    barrier();  // tile_amax written before it is read
    const uint row = t.row + gl_LocalInvocationIndex;
    if (gl_LocalInvocationIndex < ROWS && row < t.source.rows) {
        amax[amax_of(t, row, t.tile_k)] = tile_amax[gl_LocalInvocationIndex];
    }
}
