// attention_bwd_dkv_split_coopmat2: the gradients of K and V of float32 tensors on
// cooperative matrices of float16, two for each operand, with the conversions and
// per-element operations of VK_NV_cooperative_matrix2, at subgroup scope.
//
//     P   = exp(Scale * Q * K^T - LSE)      of the keys that a row sees, else 0
//     dX  = P * (dO * V^T - Delta)
//     dV  = P^T * dO                        summed over the heads that read the key head
//     dK  = Scale * dX^T * Q                likewise
//
//     q, dO         (batch, num_heads, seq_q, head_dim)      f32, any strides, last axis contiguous
//     k, v, dk, dv  (batch, num_kv_heads, seq_kv, head_dim)  f32, likewise
//     rows          (batch, num_heads, seq_q, 2)             f32, see attention_bwd_delta.comp
//
// The algorithm is in lib/bwd_dkv_matrix.glsl, the arithmetic and its errors, which are
// those of float32, in lib/tile_bwd_split.glsl. What needs the places of matrix
// elements goes by the layout that matrix_layout.comp found (lib/rows.glsl), and
// by the extension's operations where none is known (lib/rows_coopmat2.glsl).
//
// Dispatch: (ceil(seq_kv / BLOCK_M), num_kv_heads, batch), BLOCK_M = NUM_SUBGROUPS *
// ROW_TILES * MAT_M.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint NUM_SUBGROUPS = 4;
layout(constant_id = 2) const uint MAT_M = 16;
layout(constant_id = 3) const uint MAT_N = 16;
layout(constant_id = 4) const uint LENGTH = 8;         // elements of an accumulator that one invocation holds
layout(constant_id = 5) const uint ROW_RUN = 4;        // see lib/rows.glsl
layout(constant_id = 6) const uint ROW_LANES = 4;
layout(constant_id = 7) const uint COL_RUN = 4;        // element i is of the column of element i % COL_RUN
layout(constant_id = 8) const bool SAME_LAYOUT = true;
layout(constant_id = 9) const bool LOCKSTEP = false;   // see lib/rows_coopmat.glsl
layout(constant_id = 10) const uint ROW_TILES = 1;     // matrix rows of tiles per subgroup
layout(constant_id = 11) const uint STREAM = 32;       // rows of Q and dO of a tile
layout(constant_id = 12) const uint HEAD_DIM = 64;
layout(constant_id = 13) const bool CAUSAL = false;
layout(constant_id = 14) const bool ALIGNED = true;     // offsets and strides are multiples of 4
layout(constant_id = 15) const bool PREFETCH = true;    // the next tile waits in registers
layout(constant_id = 16) const bool SPLIT_LOOP = true;  // the masked tiles have a loop of their own
layout(constant_id = 17) const uint FENCE = 0;          // matrix columns of head_dim between fences, 0: none
layout(local_size_x_id = 0) in;

#ifdef FEATURES
#define FEATURES_ID 18
#define FEATURES_BINDING 7
const bool OWNS_KEYS = true;
#endif
#include "lib/element.glsl"
#include "lib/params_bwd.glsl"

layout(binding = 0, scalar) readonly buffer Q { vec4 q4[]; };
layout(binding = 0, scalar) readonly buffer Q1 { float q1[]; };
layout(binding = 1, scalar) readonly buffer K { vec4 k4[]; };
layout(binding = 1, scalar) readonly buffer K1 { float k1[]; };
layout(binding = 2, scalar) readonly buffer V { vec4 v4[]; };
layout(binding = 2, scalar) readonly buffer V1 { float v1[]; };
layout(binding = 3, scalar) readonly buffer DO { vec4 do4[]; };
layout(binding = 3, scalar) readonly buffer DO1 { float do1[]; };
layout(binding = 4, scalar) readonly buffer Rows { vec2 rows[]; };
layout(binding = 5, scalar) writeonly buffer DK { vec4 dx4[]; };
layout(binding = 5, scalar) writeonly buffer DK1 { float dx1[]; };
layout(binding = 6, scalar) writeonly buffer DV { vec4 dv4[]; };
layout(binding = 6, scalar) writeonly buffer DV1 { float dv1[]; };

#include "lib/split.glsl"
#include "lib/matrix_types.glsl"
#include "lib/rows.glsl"
#include "lib/rows_coopmat2.glsl"

DEFINE_LOAD_FLOATS8(load_q, q4, q1)
DEFINE_LOAD_FLOATS8(load_k, k4, k1)
DEFINE_LOAD_FLOATS8(load_v, v4, v1)
DEFINE_LOAD_FLOATS8(load_do, do4, do1)
DEFINE_STORE_FLOATS4(put_dx, dx4, dx1)
DEFINE_STORE_FLOATS4(put_dv, dv4, dv1)

#define SPLIT
#include "lib/bwd_dkv_matrix.glsl"

void main() {
    backward_dkv();
}
