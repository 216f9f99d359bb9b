// params_bwd_heads: the push constants of backward kernels that take one head after
// another of the (batch, num_heads) pairs, numbered batch * num_heads + head, and
// write no gradient of Q, K or V.
//
// With FEATURES they are args.plain, and p is a copy of the invocation's own, which
// lib/features.glsl makes that of a block.
//
// The includer needs GL_EXT_scalar_block_layout.
#ifndef LIB_PARAMS_BWD_HEADS_GLSL
#define LIB_PARAMS_BWD_HEADS_GLSL

#ifdef FEATURES
#include "feature_constants.glsl"
#include "feature_params.glsl"

struct Plain {
#else
layout(push_constant, scalar) uniform Params {
#endif
    uint seq_q;
    uint seq_kv;
    uint batches;
    uint num_heads;
    uint first;         // number of the first head of the dispatch
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
    uint out_offset;    // what the kernel writes, if it has strides
    uint out_stride_b;
    uint out_stride_h;
    uint out_stride_s;
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

// skip_rows makes row n the first of what is read.
void skip_rows(const uint n) {
    p.rows_offset += n;
    p.q_offset += n * p.q_stride_s;
    p.do_offset += n * p.do_stride_s;
}

// skip_keys makes key n the first of what is read.
void skip_keys(const uint n) {
    p.k_offset += n * p.k_stride_s;
    p.v_offset += n * p.v_stride_s;
}
#endif

#endif
