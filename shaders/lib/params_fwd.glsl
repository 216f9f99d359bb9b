// params_fwd: the push constants of the fused forward kernels. One block for
// every path, so that the host fills it in one place.
//
// The includer needs GL_EXT_scalar_block_layout.
#ifndef LIB_PARAMS_FWD_GLSL
#define LIB_PARAMS_FWD_GLSL

layout(push_constant, scalar) uniform Params {
    uint seq_q;
    uint seq_kv;
    uint heads_per_kv;  // num_heads / num_kv_heads
    uint group_heads;   // heads whose blocks are taken in turn, see lib/order.glsl
    uint splits;        // workgroups that share the keys of a block, see lib/split_kv.glsl
    int causal_shift;   // row i sees keys j <= i + causal_shift
    float scale_log2;   // |Scale| * log2(e): softmax in base 2
    uint q_sign;        // sign bit of every 16-bit half where Scale < 0, else 0
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
    uint o_offset;
    uint o_stride_b;
    uint o_stride_h;
    uint o_stride_s;
    uint lse_offset;
    uint lse_stride_b;
    uint lse_stride_h;
    uint lse_stride_s;
} p;

#endif
