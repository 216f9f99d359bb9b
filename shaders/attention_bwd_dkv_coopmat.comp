// attention_bwd_dkv_coopmat: the gradients of K and V on cooperative matrices of
// VK_KHR_cooperative_matrix alone.
//
//     P   = exp(Scale * Q * K^T - LSE)      of the keys that a row sees, else 0
//     dX  = P * (dO * V^T - Delta)
//     dV  = P^T * dO                        summed over the heads that read the key head
//     dK  = Scale * dX^T * Q                likewise
//
//     q, dO         (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v, dk, dv  (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     rows          (batch, num_heads, seq_q, 2)             f32, see attention_bwd_delta.comp
//
// The algorithm is in lib/bwd_dkv_matrix.glsl. What needs the places of matrix
// elements goes by the layout that matrix_layout.comp found (lib/rows.glsl), and
// through shared memory where none is known (lib/rows_coopmat.glsl).
//
// Dispatch: (ceil(seq_kv / BLOCK_M), num_kv_heads, batch), BLOCK_M = NUM_SUBGROUPS *
// ROW_TILES * MAT_M.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_bfloat16 : enable
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_cooperative_matrix : require

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
layout(constant_id = 14) const bool ALIGNED = true;     // offsets and strides are multiples of 8
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

layout(binding = 0, scalar) readonly buffer Q { uvec4 q8[]; };
layout(binding = 0, scalar) readonly buffer Q16 { uint16_t q16[]; };
layout(binding = 1, scalar) readonly buffer K { uvec4 k8[]; };
layout(binding = 1, scalar) readonly buffer K16 { uint16_t k16[]; };
layout(binding = 2, scalar) readonly buffer V { uvec4 v8[]; };
layout(binding = 2, scalar) readonly buffer V16 { uint16_t v16[]; };
layout(binding = 3, scalar) readonly buffer DO { uvec4 do8[]; };
layout(binding = 3, scalar) readonly buffer DO16 { uint16_t do16[]; };
layout(binding = 4, scalar) readonly buffer Rows { vec2 rows[]; };
layout(binding = 5, scalar) writeonly buffer DK { uvec4 dx8[]; };
layout(binding = 5, scalar) writeonly buffer DK16 { uint16_t dx16[]; };
layout(binding = 6, scalar) writeonly buffer DV { uvec4 dv8[]; };
layout(binding = 6, scalar) writeonly buffer DV16 { uint16_t dv16[]; };

#include "lib/load8.glsl"
#include "lib/matrix_types.glsl"
#include "lib/rows.glsl"
#include "lib/rows_coopmat.glsl"

DEFINE_LOAD8(load_q, q8, q16)
DEFINE_LOAD8(load_k, k8, k16)
DEFINE_LOAD8(load_v, v8, v16)
DEFINE_LOAD8(load_do, do8, do16)
DEFINE_STORE8(put_dx, dx8, dx16)
DEFINE_STORE8(put_dv, dv8, dv16)

#include "lib/bwd_dkv_matrix.glsl"

void main() {
    backward_dkv();
}
