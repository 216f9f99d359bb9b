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
// lib/fwd_matrix.glsl has the algorithm, lib/fwd_plain.glsl the loads of q (stage_q), k and v,
// lib/tile.glsl the stores of o, lib/mask.glsl the causal mask, lib/rows.glsl the layout of matrices
// that row maxima, row sums and the conversion of P to a left matrix need.
//
// With F32X2, q, k, v and o are f32, and each operand is two float16 matrices: lib/fwd_f32x2.glsl
// says what differs then, and the errors: they are as small as in float32 arithmetic.
//
// With QUANT, attention_quantize.comp has made q and k integers of 8 bits, lib/fwd_quant.glsl.
//
// With FEATURES, lib/features.glsl changes scores, weights and sums, and the last axis of V
// and O is value_dim long.
//
// Dispatch: (ceil(seq_q / BLOCK_M), num_heads, batch). With SPLIT_KV x is multiplied by
// splits, and o and lse are the partial results of lib/split_kv.glsl.
#version 460
#extension GL_KHR_shader_subgroup_vote : require
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
layout(constant_id = 16) const bool PEEL_MASK = true;    // the masked tiles have a loop of their own
layout(constant_id = 17) const uint LOAD_AHEAD = 0;      // operands are loaded at most this many matrices of head_dim ahead, 0: any
layout(constant_id = 18) const bool SPLIT_KV = false;    // writes partial results, see lib/split_kv.glsl
layout(constant_id = 19) const bool KEYS_FIRST = false;  // the first key tile is loaded before Q
layout(local_size_x_id = 0) in;

#ifdef QUANT
layout(constant_id = 20) const uint MAT_K = 32;  // the matrices of int8 are MAT_M x MAT_N x MAT_K
#define FEATURES_ID 21
#define FEATURES_BINDING 7
#else
#define FEATURES_ID 20
#define FEATURES_BINDING 5
#endif
#include "lib/element.glsl"
#include "lib/params_fwd.glsl"

#ifdef F32X2
#include "lib/f32x2.glsl"
#else
#include "lib/load8.glsl"
#endif
#include "lib/matrix_types.glsl"
#include "lib/rows.glsl"

#if defined(F32X2)
layout(binding = 0, scalar) readonly buffer Q { float q1[]; };
READ8(1, K, k)
layout(binding = 3, scalar) writeonly buffer O { float o32[]; };
#elif defined(QUANT)
layout(binding = 0, scalar) readonly buffer Q { uvec4 q16[]; };
layout(binding = 1, scalar) readonly buffer K { uvec4 k16[]; };
layout(binding = 5, scalar) readonly buffer QRows { vec2 q_rows[]; };  // scale; base-2 logits of the mean key
layout(binding = 6, scalar) readonly buffer KScales { float k_scales[]; };
#else
READ8(0, Q, q)
READ8(1, K, k)
#endif
READ8(2, V, v)
#ifndef F32X2
WRITE8(3, O, o)
layout(binding = 3, scalar) writeonly buffer O32 { float o32[]; };
#endif
layout(binding = 4, scalar) writeonly buffer LSE { float lse_out[]; };

void put_float(const uint at, const float x) { o32[at] = x; }

#include "lib/fwd_matrix.glsl"

void main() { forward(); }
