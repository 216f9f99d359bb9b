// params_unfused: the push constants of the unfused kernels, except for the scores of the
// backward pass. A dispatch handles the heads from first_head on of the (batch, num_heads)
// pairs, numbered batch * num_heads + head; S holds only those (lib/params.glsl).
//
// With FEATURES the includer declares `const bool A_OF_KEYS`: a lies as keys do and b as rows
// do; else the other way round.

#include "params.glsl"

BEGIN_PARAMS
    uint seq_q;
    uint seq_kv;
    uint num_heads;
    uint first_head;    // batch * num_heads + head of the first head in S
    uint heads_per_kv;  // num_heads / num_kv_heads
    int causal_shift;   // row i sees keys j <= i + causal_shift
    float scale_log2;   // Scale * log2(e), signed: S is in base 2
    STRIDES(a)  // Q for the scores, O or dQ for the values, dK or dV for the keys; all in elements
    STRIDES(b)  // K for the scores, V or K for the values, Q or dO for the keys
    HEAD_STRIDES(lse)
END_PARAMS

#ifdef FEATURES
uint num_heads() { return p.num_heads; }

// s2_row returns where the row of S that belongs to a row of the sequence begins.
uint s2_row(const uint row) {
    return (gl_WorkGroupID.z * args.plain.seq_q + row) * args.plain.seq_kv;
}

void skip_rows(const uint n) {
    if (A_OF_KEYS) {
        p.b_offset += n * p.b_stride_s;
    } else {
        p.a_offset += n * p.a_stride_s;
    }
    p.lse_offset += n;
}

void skip_keys(const uint n) {
    if (A_OF_KEYS) {
        p.a_offset += n * p.a_stride_s;
    } else {
        p.b_offset += n * p.b_stride_s;
    }
}
#endif
