// params_bwd_inputs: members of the push constants of all backward kernels: the mask, heads
// and where what they read lies. Included inside a block or a struct, so that it has no
// guard.
    uint heads_per_kv;  // num_heads / num_kv_heads
    int causal_shift;   // row i sees keys j <= i + causal_shift
    float scale_log2;   // Scale * log2(e), signed: scores in base 2
    uint rows_offset;   // pairs of lse2 and Delta, see attention_bwd_delta.comp
    uint num_kv_heads;
    uint rows_stride_h;
#include "params_qkv.glsl"
    uint do_offset;
    uint do_stride_b;
    uint do_stride_h;
    uint do_stride_s;
