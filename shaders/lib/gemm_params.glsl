// gemm_params: the push constants of the GEMM kernels, and the specialization
// constants of what they do to the sum of products.
//
//     v = alpha * sum + beta * C      beta * C with READ_C
//     X = v                           with KEEP_X
//     v = silu(v)                     with SILU
//     v = v * silu'(X)                with TIMES_DSILU
//     S = silu(X)                     with KEEP_S
//     C = v + R                       R with RESIDUAL
//
// C, R, X and S are (batch, m, n) of one format, OUT_FORMAT.
//
// The includer defines EPILOGUE_ID, the constant_id of the first of the constants.
#ifndef LIB_GEMM_PARAMS_GLSL
#define LIB_GEMM_PARAMS_GLSL

layout(constant_id = EPILOGUE_ID) const uint OUT_FORMAT = 0;  // FORMAT_F32, FORMAT_F16 or FORMAT_BF16
layout(constant_id = EPILOGUE_ID + 1) const bool OUT_ALIGNED = true;  // offsets and strides of C, R, X and S are multiples of 4
layout(constant_id = EPILOGUE_ID + 2) const bool READ_C = false;
layout(constant_id = EPILOGUE_ID + 3) const bool RESIDUAL = false;
layout(constant_id = EPILOGUE_ID + 4) const bool SILU = false;
layout(constant_id = EPILOGUE_ID + 5) const bool KEEP_X = false;
layout(constant_id = EPILOGUE_ID + 6) const bool TIMES_DSILU = false;
layout(constant_id = EPILOGUE_ID + 7) const bool KEEP_S = false;

layout(push_constant, scalar) uniform Params {
    uint m;
    uint n;
    uint k;
    uint split_k;  // k of one split, a multiple of BLOCK_K
    uint splits;
    uint tiles;    // blocks of one product
    float alpha;
    float beta;
    uint a_offset;  // elements, like all that follow
    uint a_stride_b;
    uint a_stride;
    uint b_offset;
    uint b_stride_b;
    uint b_stride;
    uint c_offset;
    uint c_stride_b;
    uint c_stride;
    uint r_offset;
    uint r_stride_b;
    uint r_stride;
    uint x_offset;
    uint x_stride_b;
    uint x_stride;
    uint s_offset;
    uint s_stride_b;
    uint s_stride;
} p;

#endif
