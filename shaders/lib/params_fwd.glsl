// params_fwd: the push constants of the fused forward kernels. One block for
// every path, so that the host fills it in one place.
//
// With FEATURES they are args.plain, and p is a copy of the invocation's own, which
// enter_block (lib/features.glsl) makes that of a block of rows.
//
// The includer needs GL_EXT_scalar_block_layout.
#ifndef LIB_PARAMS_FWD_GLSL
#define LIB_PARAMS_FWD_GLSL

#ifdef FEATURES
#include "feature_constants.glsl"
#include "feature_params.glsl"

struct Plain {
#else
layout(push_constant, scalar) uniform Params {
#endif
    uint seq_q;
    uint seq_kv;
    uint heads_per_kv;  // num_heads / num_kv_heads
    uint num_heads;
    uint group_heads;   // heads whose blocks are taken in turn, 0: none, see lib/order.glsl
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
#ifndef FEATURES
} p;
#else
};

layout(push_constant, scalar) uniform Params {
    Plain plain;
    Features features;
} args;

Plain p = args.plain;

uint num_heads() {
    return p.num_heads;
}

// skip_rows makes row n the first.
void skip_rows(const uint n) {
    p.q_offset += n * p.q_stride_s;
    p.o_offset += n * p.o_stride_s;
    p.lse_offset += n * p.lse_stride_s;
}

// skip_keys makes key n the first.
void skip_keys(const uint n) {
    p.k_offset += n * p.k_stride_s;
    p.v_offset += n * p.v_stride_s;
}
#endif

#endif
