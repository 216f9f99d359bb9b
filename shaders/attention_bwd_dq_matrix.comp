// attention_bwd_dq_matrix: the gradient of Q on cooperative matrices.
//
//     P   = exp(Scale * Q * K^T - LSE)      of the keys that a row sees, else 0
//     dX  = P * (dO * V^T - Delta)
//     dQ  = Scale * dX * K
//
//     q, dO, dq  (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v       (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     rows       (batch, num_heads, seq_q, 2)             f32, see attention_bwd_delta.comp
//
// lib/bwd_dq_matrix.glsl has the algorithm, lib/rows.glsl the layout of matrices that it needs.
//
// With F32X2, q, dO, dq, k and v are f32, and each operand is two float16 matrices:
// lib/tile_bwd_f32x2.glsl has the arithmetic and its errors: as small as in float32.
//
// With FEATURES, lib/feature_gradients.glsl changes P and dX, and the last axis of V and dO is
// value_dim long.
//
// With STORE, P and dX are stored for attention_bwd_products.comp:
//
//     stored  (heads, pages, 2, BLOCK_M, BLOCK_M)  ELEM, P and dX, see lib/pages.glsl
//
// Dispatch: with STORE (n, ceil(seq_q / BLOCK_M), ceil(heads / n)), else (ceil(seq_q / BLOCK_M),
// num_heads, batch), BLOCK_M = NUM_SUBGROUPS * ROW_TILES * MAT_M, or with GROUPED as lib/order.glsl
// says.
#version 460
#include "lib/bwd_matrix_constants.glsl"
#ifdef STORE
layout(constant_id = 18) const bool PACKED = true;  // see lib/pages.glsl
#else
layout(constant_id = 18) const bool GROUPED = false;  // heads take turns with their blocks, see lib/order.glsl
#endif
layout(local_size_x_id = 0) in;

#ifdef FEATURES
#define FEATURES_ID 19
#ifdef STORE
#define FEATURES_BINDING 7
#else
#define FEATURES_BINDING 6
#endif
#define OWNS_KEYS false
#endif
#include "lib/bwd_matrix_inputs.glsl"

WRITE8(5, DQ, dx)
#define put_dv put_dx  // there is none
#ifdef STORE
layout(binding = 6, scalar) writeonly buffer Stored { uvec4 stored8[]; };
#endif

#include "lib/bwd_dq_matrix.glsl"

void main() { backward_dq(); }
