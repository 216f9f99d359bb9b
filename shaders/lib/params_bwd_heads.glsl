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
#include "params_bwd_inputs.glsl"
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
