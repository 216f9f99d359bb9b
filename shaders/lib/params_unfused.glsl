// params_unfused: the push constants of the three unfused kernels. A dispatch
// handles the heads first_head .. of the (batch, num_heads) pairs, numbered
// batch * num_heads + head; S holds only those.
//
// The includer needs GL_EXT_scalar_block_layout.
#ifndef LIB_PARAMS_UNFUSED_GLSL
#define LIB_PARAMS_UNFUSED_GLSL

layout(push_constant, scalar) uniform Params {
    uint seq_q;
    uint seq_kv;
    uint num_heads;
    uint first_head;    // batch * num_heads + head of the first head in S
    uint heads_per_kv;  // num_heads / num_kv_heads
    int causal_shift;   // row i sees keys j <= i + causal_shift
    float scale_log2;   // Scale * log2(e), signed: S is in base 2
    uint a_offset;      // Q for the scores, O for the values; all in elements
    uint a_stride_b;
    uint a_stride_h;
    uint a_stride_s;
    uint b_offset;      // K for the scores, V for the values
    uint b_stride_b;
    uint b_stride_h;
    uint b_stride_s;
    uint lse_offset;
    uint lse_stride_b;
    uint lse_stride_h;
} p;

#endif
