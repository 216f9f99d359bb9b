// params_bwd: the push constants of the backward kernels that own dQ, or dK and dV.
// One block for both, so that the host fills it in one place.
//
// The includer needs GL_EXT_scalar_block_layout.
#ifndef LIB_PARAMS_BWD_GLSL
#define LIB_PARAMS_BWD_GLSL

layout(push_constant, scalar) uniform Params {
    uint seq_q;
    uint seq_kv;
    uint heads_per_kv;  // num_heads / num_kv_heads
    int causal_shift;   // row i sees keys j <= i + causal_shift
    float scale_log2;   // Scale * log2(e), signed: scores in base 2
    uint rows_offset;   // pairs of lse2 and Delta, see attention_bwd_delta.comp
    uint rows_stride_b;
    uint rows_stride_h;
    uint q_offset;      // all offsets and strides are in elements
    uint q_stride_b;
    uint q_stride_h;
    uint q_stride_s;
    uint k_offset;
    uint k_stride_b;
    uint k_stride_h;
    uint k_stride_s;
    uint v_offset;
    uint v_stride_b;
    uint v_stride_h;
    uint v_stride_s;
    uint do_offset;
    uint do_stride_b;
    uint do_stride_h;
    uint do_stride_s;
    uint dx_offset;     // dQ, or dK
    uint dx_stride_b;
    uint dx_stride_h;
    uint dx_stride_s;
    uint dv_offset;
    uint dv_stride_b;
    uint dv_stride_h;
    uint dv_stride_s;
} p;

#endif
