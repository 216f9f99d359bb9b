// bwd_rows: the heads of Q in the backward kernels, and where lse2 and Delta of their rows are
// (attention_bwd_delta.comp).
//
// The includer declares the push constants p with the members of lib/params_bwd_inputs.glsl.

uint num_heads() {
    return p.num_kv_heads * p.heads_per_kv;
}

// rows_at returns the pair of the first row of a head. Packed sequences share a head's rows.
uint rows_at(const uint batch, const uint head) {
#ifdef FEATURES
    const uint number = VARLEN ? head : batch * num_heads() + head;
#else
    const uint number = batch * num_heads() + head;
#endif
    return p.rows_offset + number * p.rows_stride_h;
}
