// attention_bwd_fused_matrix: all gradients in one kernel, on cooperative matrices. It is for
// 16-bit tensors and without FEATURES.
//
//     P   = exp(Scale * Q * K^T - LSE)      of the keys that a row sees, else 0
//     dX  = P * (dO * V^T - Delta)
//     dQ  = Scale * dX * K
//     dV  = P^T * dO                        summed over the heads that read the key head
//     dK  = Scale * dX^T * Q                likewise
//
//     q, dO, dq     (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v, dk, dv  (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     rows          (batch, num_heads, seq_q, 2)             f32, see attention_bwd_delta.comp
//     part_dq       (batch, num_heads, splits, seq_q, head_dim), the last two padded to whole
//                   tiles of BLOCK_N rows and matrices: f32, dX * K of the keys of a split
//
// With ONE_BLOCK it writes dq, otherwise part_dq, at the same binding;
// package attention always sets it. dq_offset and the first two strides are those
// of the tensor that is written; dq_stride_s is the stride of a split in part_dq.
//
// lib/bwd_fused_matrix.glsl has the algorithm, lib/rows.glsl the layout of matrices that it needs.
//
// Dispatch: (splits, num_kv_heads, batch).
#version 460
#include "lib/bwd_matrix_constants.glsl"
layout(constant_id = 18) const bool ONE_BLOCK = false;  // there are no more than BLOCK_M keys, and one split
layout(local_size_x_id = 0) in;

#define WITH_DQ
#include "lib/bwd_matrix_inputs.glsl"

WRITE8(5, DK, dx)
WRITE8(6, DV, dv)
WRITE8(7, DQ, dq)
layout(binding = 7, scalar) workgroupcoherent buffer PartDQ { float part_dq[]; };

#include "lib/bwd_fused_matrix.glsl"

void main() { backward_fused(); }
