// decode_params: the push constants of attention_decode. Offsets and strides are elements.
layout(push_constant, scalar) uniform Params {
    uint batch;
    uint seq_q;
    uint group;         // heads that share a key head
    uint group_inverse; // by_group
    uint kv_heads;
    uint row_blocks;    // ceil(group * seq_q / ROWS)
    int new_keys;       // that seq_lens does not count yet
    int capacity;       // keys that a sequence can have
    uint pages;         // that there are; without pages, sequences of the cache
    uint least_tiles;   // of a workgroup
    uint shares;        // workgroups of each unit, if each has its own
    float scale_log2;   // Scale * log2(e)
    int window_left;
    float softcap_in;   // 2 / Softcap
    float softcap_out;  // log2(e) * Softcap
#include "params_qkv.glsl"
#include "params_o_lse.glsl"
    uint seq_lens_offset;
    uint block_table_offset;
    uint block_table_stride_b;
    uint state_offset;
    uint tree_mask_offset;  // words of 32 bits
    uint tree_mask_stride_b;
    uint tree_mask_stride_s;
    uint slopes_offset;
    uint slopes_stride_b;
    uint bias_offset;
    uint bias_stride_b;
    uint bias_stride_h;
    uint bias_stride_s;
    uint sinks_offset;
    uint left_pad_offset;
    uint batch_idx_offset;
#ifdef CACHE8
    uint k_scale_offset;
    uint k_scale_stride_h;  // of e4m3
    uint v_scale_offset;
    uint v_scale_stride_h;
#endif
#ifdef APPEND
#include "params_new_kv.glsl"
    uint cos_offset;
    uint sin_offset;
#endif
} p;
