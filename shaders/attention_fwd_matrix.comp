// attention_fwd_matrix: fused attention forward on cooperative matrices.
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
// lib/fwd_matrix.glsl has the algorithm, lib/tile.glsl the loads of q (stage_q), k and v
// and the stores of o, lib/mask.glsl the causal mask.
//
// Row maxima, row sums and the conversion of P to a left matrix need the layout of a matrix:
// which invocation holds which element. If matrix_layout.comp has found it, lib/rows.glsl
// uses it. If not, lib/rows_coopmat.glsl goes through shared memory, with
// VK_KHR_cooperative_matrix alone; with COOPMAT2, lib/rows_coopmat2.glsl uses the
// reductions, conversions and per-element operations of VK_NV_cooperative_matrix2, at
// subgroup scope.
//
// With F32X2, q, k, v and o are f32, and each operand is two float16 matrices:
// lib/fwd_f32x2.glsl says what differs then, and the errors, which are those of float32
// arithmetic.
//
// With FEATURES, lib/features.glsl changes scores, weights and sums, and the last axis of V
// and O is value_dim long.
//
// Dispatch: (ceil(seq_q / BLOCK_M), num_heads, batch). With SPLIT_KV x is multiplied by
// splits, and o and lse are the partial results of lib/split_kv.glsl.
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_vote : require
#include "lib/matrix_extensions.glsl"

#include "lib/matrix_constants.glsl"
layout(constant_id = 7) const bool SAME_LAYOUT = true;  // see lib/rows.glsl
layout(constant_id = 8) const bool LOCKSTEP = false;    // see lib/rows_coopmat.glsl
layout(constant_id = 9) const uint ROW_TILES = 1;       // matrix rows of tiles per subgroup
layout(constant_id = 10) const uint BLOCK_N = 64;
layout(constant_id = 11) const uint HEAD_DIM = 64;
layout(constant_id = 12) const bool CAUSAL = false;
layout(constant_id = 13) const bool ALIGNED = true;      // offsets and strides are multiples of 8, with F32X2 of 4
layout(constant_id = 14) const bool WRITE_LSE = true;
layout(constant_id = 15) const bool PREFETCH = true;     // the next key tile waits in registers
layout(constant_id = 16) const bool SPLIT_LOOP = true;   // the masked tiles have a loop of their own
layout(constant_id = 17) const uint FENCE = 0;           // matrix columns of head_dim between fences, 0: none
layout(constant_id = 18) const bool SPLIT_KV = false;    // writes partial results, see lib/split_kv.glsl
layout(constant_id = 19) const bool KEYS_FIRST = false;  // the first key tile is loaded before Q
layout(local_size_x_id = 0) in;

#ifdef FEATURES
#define FEATURES_ID 20
#define FEATURES_BINDING 5
#endif
#include "lib/element.glsl"
#include "lib/params_fwd.glsl"

#ifdef F32X2
layout(binding = 0, scalar) readonly buffer Q { float q1[]; };
layout(binding = 1, scalar) readonly buffer K { vec4 k4[]; };
layout(binding = 1, scalar) readonly buffer K1 { float k1[]; };
layout(binding = 2, scalar) readonly buffer V { vec4 v4[]; };
layout(binding = 2, scalar) readonly buffer V1 { float v1[]; };
layout(binding = 3, scalar) writeonly buffer O { float o32[]; };
layout(binding = 4, scalar) writeonly buffer LSE { float lse_out[]; };
#include "lib/f32x2.glsl"
#else
layout(binding = 0, scalar) readonly buffer Q { uvec4 q8[]; };
layout(binding = 0, scalar) readonly buffer Q16 { uint16_t q16[]; };
layout(binding = 1, scalar) readonly buffer K { uvec4 k8[]; };
layout(binding = 1, scalar) readonly buffer K16 { uint16_t k16[]; };
layout(binding = 2, scalar) readonly buffer V { uvec4 v8[]; };
layout(binding = 2, scalar) readonly buffer V16 { uint16_t v16[]; };
layout(binding = 3, scalar) writeonly buffer O { uvec4 o8[]; };
layout(binding = 3, scalar) writeonly buffer O16 { uint16_t o16[]; };
layout(binding = 3, scalar) writeonly buffer O32 { float o32[]; };
layout(binding = 4, scalar) writeonly buffer LSE { float lse_out[]; };
#include "lib/load8.glsl"
#endif

#include "lib/matrix_types.glsl"
#include "lib/rows.glsl"

#ifdef F32X2
DEFINE_LOAD_FLOATS8(load_k, k4, k1)
DEFINE_LOAD_FLOATS8(load_v, v4, v1)
#else
DEFINE_LOAD8(load_q, q8, q16)
DEFINE_LOAD8(load_k, k8, k16)
DEFINE_LOAD8(load_v, v8, v16)
DEFINE_STORE8(put_o, o8, o16)
#endif

void put_float(const uint at, const float x) {
    o32[at] = x;
}

#include "lib/fwd_matrix.glsl"

void main() {
    forward();
}
