// params_new_kv: members of the push constants that say where the new keys and values lie. Included
// inside a block, so that it has no guard.
    uint new_k_offset;
    uint new_k_stride_b;
    uint new_k_stride_h;
    uint new_k_stride_s;
    uint new_v_offset;
    uint new_v_stride_b;
    uint new_v_stride_h;
    uint new_v_stride_s;
