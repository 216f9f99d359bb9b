// params_bwd: the push constants of the backward kernels that own dQ, or dK and dV.
// One block for both, so that the host fills it in one place (lib/params.glsl).
//
// With FEATURES the includer declares `const bool OWNS_KEYS`: dX and dV lie as keys do; else dX
// as rows do.
//
// With STORE there is no dV, and there are other words in its place.

#include "params.glsl"

BEGIN_PARAMS
    uint seq_q;
    uint seq_kv;
#include "params_bwd_inputs.glsl"
    uint dx_offset;     // dQ, or dK
    uint dx_stride_b;
    uint dx_stride_h;
    uint dx_stride_s;
#ifdef STORE
    uint first_head;    // of batch*num_heads, the first of the dispatch
    uint heads;         // of the dispatch, not all of them neighbours:
    uint members;       // so many of each heads_per_kv are
    uint pages_offset;  // uvec4, lib/pages.glsl
#ifdef FEATURES
    uint head_pages;    // that a head may have
    uint block_pages;   // and a block of rows, where a window begins
#endif
#else
    uint dv_offset;
    uint dv_stride_b;
    uint dv_stride_h;
    uint dv_stride_s;
#endif
#ifdef WITH_DQ
    uint dq_offset;     // where dX is dK
    uint dq_stride_b;
    uint dq_stride_h;
    uint dq_stride_s;
#endif
END_PARAMS

#include "bwd_rows.glsl"

#ifdef FEATURES
// skip_rows makes row n the first.
void skip_rows(const uint n) {
    p.rows_offset += n;
    p.q_offset += n * p.q_stride_s;
    p.do_offset += n * p.do_stride_s;
    p.dx_offset += OWNS_KEYS ? 0 : n * p.dx_stride_s;
}

// skip_keys makes key n the first.
void skip_keys(const uint n) {
    p.k_offset += n * p.k_stride_s;
    p.v_offset += n * p.v_stride_s;
#ifndef STORE
    if (OWNS_KEYS) {
        p.dx_offset += n * p.dx_stride_s;
        p.dv_offset += n * p.dv_stride_s;
    }
#endif
}
#endif
