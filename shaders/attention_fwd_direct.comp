// attention_fwd_direct: fused attention forward for small problems, without shared memory between
// K and V in memory and the products.
//
//     S   = Scale * Q * K^T
//     P   = softmax(S) over the keys that a row sees
//     O   = P * V
//     LSE = log(sum(exp(S))) of each row
//
//     q, o  (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v  (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     lse   (batch, num_heads, seq_q)                f32, any strides
//
// A small problem is over before the device is busy, so its time is the sum of dependent
// latencies. Here all first loads, of Q, K and V, leave at once, and subgroups meet at most once.
// lib/fwd_direct.glsl has the algorithm, lib/direct_operands.glsl the way of operands from memory.
//
// Dispatch: (ceil(seq_q / BLOCK_M), num_heads, batch), or as lib/order.glsl says.
#version 460
#extension GL_KHR_shader_subgroup_vote : require
#include "lib/matrix_constants.glsl"
layout(constant_id = 7) const bool SAME_LAYOUT = true;   // see lib/rows.glsl
layout(constant_id = 8) const uint ROW_TILES = 1;        // matrix rows of tiles per subgroup
layout(constant_id = 9) const uint BLOCK_N = 32;         // keys of a subgroup's tile
layout(constant_id = 10) const uint HEAD_DIM = 64;
layout(constant_id = 11) const bool CAUSAL = false;
layout(constant_id = 12) const bool ALIGNED = true;      // offsets and strides are multiples of 8
layout(constant_id = 13) const bool WRITE_LSE = true;
layout(constant_id = 14) const uint STRIPES = 1;         // subgroups that share the keys of the same rows
layout(constant_id = 15) const bool QUADS = true;        // see lib/direct_operands.glsl
const bool SPLIT_KV = false;
layout(local_size_x_id = 0) in;

#include "lib/element.glsl"
#include "lib/params_fwd.glsl"

#include "lib/load8.glsl"
#include "lib/matrix_types.glsl"
#include "lib/rows.glsl"

READ8(0, Q, q)
READ8(1, K, k)
READ8(2, V, v)
WRITE8(3, O, o)
layout(binding = 3, scalar) writeonly buffer O4 { uvec2 o4[]; };
layout(binding = 4, scalar) writeonly buffer LSE { float lse_out[]; };

void put_o4(const uint i, const uvec2 x) {
    if (ALIGNED) {
        o4[i >> 2] = x;
        return;
    }
    [[unroll]] for (uint e = 0; e < 4; e++) {
        o16[i + e] = uint16_t(x[e / 2] >> (e % 2 * 16));
    }
}

#include "lib/fwd_direct.glsl"

void main() { forward(); }
