// feature_params: the push constants of features, behind those of the plain kernel. Offsets
// and strides are in elements; the stride of a shared axis is 0. Batches and heads are those
// of the dispatch.

struct Features {
    int window_left;        // row i, at key i + shift, sees this many keys before
    int window_right;       // and after that one
    float softcap_in;       // 2 / Softcap
    float softcap_out;      // log2(e) * Softcap
    uint bias_offset;
    uint bias_stride_b;
    uint bias_stride_h;
    uint bias_stride_s;
    uint slopes_offset;
    uint slopes_stride_b;
    uint sinks_offset;
    uint key_mask_offset;
    uint key_mask_stride_b;
    uint cu_seqlens_q_offset;
    uint cu_seqlens_kv_offset;
    uint total_q;           // rows of packed Q; cu_seqlens_q is clamped to it
    uint total_kv;
    uint bottom_right;      // 1: row i of a packed sequence is at key i + seq_kv - seq_q; 0: at key i
    uint drop_below;        // a weight is dropped if its random word is below
    float keep_scale;       // 1/(1-P), the factor of the other weights
    uint seed_lo;
    uint seed_hi;
    uint stream_lo;         // Dropout.Offset, for the first head of the first batch
    uint stream_hi;
};
