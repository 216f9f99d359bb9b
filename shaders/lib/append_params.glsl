// append_params: the push constants of attention_append. Offsets and strides are elements.
layout(push_constant, scalar) uniform Params {
    uint batch;
    uint seq_q;
    uint heads;
    uint kv_heads;
    int new_keys;
    int capacity;   // keys that a sequence can have
    uint pages;     // that there are; without pages, sequences of the cache
    uint k_groups;  // workgroups for k
    uint v_groups;
#include "params_new_kv.glsl"
    uint k_offset;
    uint k_stride_b;  // from a page to the next, where there are pages
    uint k_stride_h;
    uint k_stride_s;
    uint v_offset;
    uint v_stride_b;
    uint v_stride_h;
    uint v_stride_s;
    uint q_offset;
    uint q_stride_b;
    uint q_stride_h;
    uint q_stride_s;
    uint seq_lens_offset;
    uint block_table_offset;
    uint block_table_stride_b;
    uint state_offset;
    uint cos_offset;
    uint sin_offset;
    uint batch_idx_offset;
#ifdef CACHE8
    uint k_scale_offset;
    uint k_scale_stride_h;  // of e4m3
    uint v_scale_offset;
    uint v_scale_stride_h;
#endif
} p;
