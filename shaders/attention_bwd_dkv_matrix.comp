// attention_bwd_dkv_matrix: the gradients of K and V on cooperative matrices.
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
// lib/bwd_dkv_matrix.glsl has the algorithm, lib/rows.glsl the layout of matrices that it needs.
//
// With F32X2, q, dO, k, v, dk and dv are f32, and each operand is two float16 matrices:
// lib/tile_bwd_f32x2.glsl has the arithmetic and its errors: as small as in float32.
//
// With FEATURES, lib/feature_gradients.glsl changes P and dX, and the last axis of V, dV and dO is
// value_dim long.
//
// Dispatch: (ceil(seq_kv / BLOCK_M), num_kv_heads, batch), BLOCK_M = NUM_SUBGROUPS *
// ROW_TILES * MAT_M, or with GROUPED as lib/order.glsl says.
#version 460
#include "lib/bwd_matrix_constants.glsl"
layout(constant_id = 18) const bool GROUPED = false;  // heads take turns with their blocks, see lib/order.glsl
layout(local_size_x_id = 0) in;

#define FEATURES_ID 19
#define FEATURES_BINDING 7
#define OWNS_KEYS true
#include "lib/bwd_matrix_inputs.glsl"

WRITE8(5, DK, dx)
WRITE8(6, DV, dv)

#include "lib/bwd_dkv_matrix.glsl"

void main() { backward_dkv(); }
