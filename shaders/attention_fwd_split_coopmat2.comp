// attention_fwd_split_coopmat2: fused attention forward of float32 tensors on
// cooperative matrices of float16, two for each operand, with the reductions,
// conversions and per-element operations of VK_NV_cooperative_matrix2, at
// subgroup scope.
//
//     S   = Scale * Q * K^T
//     P   = softmax(S) over the keys that a row sees
//     O   = P * V
//     LSE = log(sum(exp(S))) of each row
//
//     q, o  (batch, num_heads, seq_q, head_dim)      f32, any strides, last axis contiguous
//     k, v  (batch, num_kv_heads, seq_kv, head_dim)  f32, likewise
//     lse   (batch, num_heads, seq_q)                f32, any strides
//
// lib/fwd_matrix_split.glsl has the algorithm and its errors, which are those
// of float32 arithmetic.
//
// With FEATURES, scores, weights and sums are what lib/features.glsl makes of them,
// and the last axis of V and O is value_dim long.
//
// Dispatch: (ceil(seq_q / BLOCK_M), num_heads, batch).
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint NUM_SUBGROUPS = 4;
layout(constant_id = 2) const uint MAT_M = 16;
layout(constant_id = 3) const uint MAT_N = 16;
layout(constant_id = 4) const uint LENGTH = 8;     // elements of an accumulator that one invocation holds
layout(constant_id = 5) const uint ROW_RUN = 4;    // see lib/rows.glsl
layout(constant_id = 6) const uint ROW_LANES = 4;
layout(constant_id = 7) const bool SAME_LAYOUT = true;
layout(constant_id = 8) const bool LOCKSTEP = false;  // see lib/rows_coopmat.glsl
layout(constant_id = 9) const uint ROW_TILES = 1;  // matrix rows of tiles per subgroup
layout(constant_id = 10) const uint BLOCK_N = 64;
layout(constant_id = 11) const uint HEAD_DIM = 64;
layout(constant_id = 12) const bool CAUSAL = false;
layout(constant_id = 13) const bool ALIGNED = true;   // offsets and strides are multiples of 4
layout(constant_id = 14) const bool WRITE_LSE = true;
layout(constant_id = 15) const bool PREFETCH = true;  // the next key tile waits in registers
layout(constant_id = 16) const bool SPLIT_LOOP = true;  // see lib/fwd_matrix_split.glsl
layout(constant_id = 17) const uint FENCE = 0;          // matrix columns of head_dim between fences, 0: none
layout(constant_id = 18) const bool SPLIT_KV = false;   // see lib/split_kv.glsl
layout(constant_id = 19) const bool KEYS_FIRST = false;  // the first key tile is loaded before Q
layout(local_size_x_id = 0) in;

#ifdef FEATURES
#define FEATURES_ID 20
#define FEATURES_BINDING 5
#endif
#include "lib/element.glsl"
#include "lib/params_fwd.glsl"

layout(binding = 0, scalar) readonly buffer Q { float q1[]; };
layout(binding = 1, scalar) readonly buffer K { vec4 k4[]; };
layout(binding = 1, scalar) readonly buffer K1 { float k1[]; };
layout(binding = 2, scalar) readonly buffer V { vec4 v4[]; };
layout(binding = 2, scalar) readonly buffer V1 { float v1[]; };
layout(binding = 3, scalar) writeonly buffer O { float o[]; };
layout(binding = 4, scalar) writeonly buffer LSE { float lse_out[]; };

#include "lib/split.glsl"
#include "lib/matrix_types.glsl"
#include "lib/rows.glsl"
#include "lib/rows_coopmat2.glsl"

DEFINE_LOAD_FLOATS8(load_k, k4, k1)
DEFINE_LOAD_FLOATS8(load_v, v4, v1)

void put_float(const uint at, const float x) {
    o[at] = x;
}

#include "lib/fwd_matrix_split.glsl"

void main() {
    forward();
}
