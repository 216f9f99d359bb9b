// params_bwd: the push constants of the backward kernels, and where lse2 and Delta of rows are
// (attention_bwd_delta.comp). One block for all that own dQ, or dK and dV, so that the host fills it
// in one place (lib/params.glsl).
//
// BY_HEAD is for kernels that write no gradient of Q, K or V. They take one head after another of
// the (batch, num_heads) pairs, numbered batch * num_heads + head.
//
// With FEATURES the includer of the others declares `const bool OWNS_KEYS`: dX and dV lie as keys
// do; else dX as rows do. With STORE there is no dV, and there are other words in its place.

#include "params.glsl"

BEGIN_PARAMS
    uint seq_q;
    uint seq_kv;
#ifdef BY_HEAD
    uint batches;
    uint first;         // number of the first head of the dispatch
#endif
    uint heads_per_kv;  // num_heads / num_kv_heads
    int causal_shift;   // row i sees keys j <= i + causal_shift
    float scale_log2;   // Scale * log2(e), signed: scores in base 2
    uint rows_offset;   // pairs of lse2 and Delta
    uint num_kv_heads;
    uint rows_stride_h;
    STRIDES(q)
    STRIDES(k)
    STRIDES(v)
    STRIDES(do)
#ifdef BY_HEAD
    STRIDES(out)        // what the kernel writes, if it has strides
#else
    STRIDES(dx)         // dQ, or dK
#ifdef STORE
    uint first_head;    // of batch*num_heads, the first of the dispatch
    uint heads;         // of the dispatch
    uint members;       // of each heads_per_kv heads, those of the dispatch, which are neighbours
    uint pages_offset;  // uvec4, lib/pages.glsl
#ifdef FEATURES
    uint head_pages;    // that a head may have
    uint block_pages;   // and a block of rows, where a window begins
#endif
#else
    STRIDES(dv)
#endif
#ifdef WITH_DQ
    STRIDES(dq)         // where dX is dK
#endif
#endif
END_PARAMS

uint num_heads() { return p.num_kv_heads * p.heads_per_kv; }

// rows_at returns the pair of the first row of a head. Packed sequences share a head's rows.
uint rows_at(const uint batch, const uint head) {
#ifdef FEATURES
    const uint number = VARLEN ? head : batch * num_heads() + head;
#else
    const uint number = batch * num_heads() + head;
#endif
    return p.rows_offset + number * p.rows_stride_h;
}

#ifdef FEATURES
void skip_rows(const uint n) {
    p.rows_offset += n;
    p.q_offset += n * p.q_stride_s;
    p.do_offset += n * p.do_stride_s;
#ifndef BY_HEAD
    p.dx_offset += OWNS_KEYS ? 0 : n * p.dx_stride_s;
#endif
}

void skip_keys(const uint n) {
    p.k_offset += n * p.k_stride_s;
    p.v_offset += n * p.v_stride_s;
#if !defined(STORE) && !defined(BY_HEAD)
    if (OWNS_KEYS) {
        p.dx_offset += n * p.dx_stride_s;
        p.dv_offset += n * p.dv_stride_s;
    }
#endif
}
#endif
