// params_qkv: members of push constants: where Q, K and V lie. Included inside a block or a struct,
// so that it has no guard.
    uint q_offset;      // all offsets and strides are in elements
    uint q_stride_b;
    uint q_stride_h;
    uint q_stride_s;
    uint k_offset;
    uint k_stride_b;    // of a cache with pages, from a page to the next
    uint k_stride_h;
    uint k_stride_s;
    uint v_offset;
    uint v_stride_b;
    uint v_stride_h;
    uint v_stride_s;
