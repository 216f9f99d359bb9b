// params_o_lse: members of push constants: where O and LSE lie, likewise (lib/params_qkv.glsl).
    uint o_offset;
    uint o_stride_b;
    uint o_stride_h;
    uint o_stride_s;
    uint lse_offset;
    uint lse_stride_b;
    uint lse_stride_h;
    uint lse_stride_s;
