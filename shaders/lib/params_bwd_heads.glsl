// params_bwd_heads: the push constants of backward kernels that take one head after
// another of the (batch, num_heads) pairs, numbered batch * num_heads + head, and
// write no gradient of Q, K or V (lib/params.glsl).

#include "params.glsl"

BEGIN_PARAMS
    uint seq_q;
    uint seq_kv;
    uint batches;
    uint first;         // number of the first head of the dispatch
#include "params_bwd_inputs.glsl"
    uint out_offset;    // what the kernel writes, if it has strides
    uint out_stride_b;
    uint out_stride_h;
    uint out_stride_s;
END_PARAMS

#include "bwd_rows.glsl"

#ifdef FEATURES
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
