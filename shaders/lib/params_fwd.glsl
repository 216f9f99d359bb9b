// params_fwd: the push constants of the fused forward kernels. One block for
// every path, so that the host fills it in one place (lib/params.glsl).

#include "params.glsl"

BEGIN_PARAMS
    uint seq_q;
    uint seq_kv;
    uint heads_per_kv;  // num_heads / num_kv_heads
    uint num_heads;
    uint group_heads;   // heads whose blocks are taken in turn, 0: none, see lib/order.glsl
    uint splits;        // workgroups that share the keys of a block, see lib/split_kv.glsl
    int causal_shift;   // row i sees keys j <= i + causal_shift
    float scale_log2;   // |Scale| * log2(e): softmax in base 2
    uint q_sign;        // sign bit of every 16-bit half where Scale < 0, else 0
    STRIDES(q)
    STRIDES(k)
    STRIDES(v)
    STRIDES(o)
    STRIDES(lse)
END_PARAMS

#define GROUPED p.group_heads > 0  // of lib/order.glsl, like the rest
#define GROUP_HEADS p.group_heads
#define BATCH_HEADS p.num_heads
#define SAME_KV p.heads_per_kv
#define LAST_FIRST CAUSAL
#define SPLITS p.splits

#ifdef FEATURES
uint num_heads() { return p.num_heads; }

void skip_rows(const uint n) {
    p.q_offset += n * p.q_stride_s;
    p.o_offset += n * p.o_stride_s;
    p.lse_offset += n * p.lse_stride_s;
}

void skip_keys(const uint n) {
    p.k_offset += n * p.k_stride_s;
    p.v_offset += n * p.v_stride_s;
}
#endif
