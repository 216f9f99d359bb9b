// gemm_constants: the specialization constants that the kernels of lib/gemm_matrix.glsl share, 0 to
// 15. Those that use up the sums themselves have all of k, so that PARTIAL is false.

#include "matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint SUBGROUPS_M = 2;    // a workgroup is a grid of subgroups, lib/gemm_tensors.glsl
layout(constant_id = 2) const uint SUBGROUPS_N = 2;
layout(constant_id = 3) const uint MAT_M = 16;
layout(constant_id = 4) const uint MAT_N = 16;
layout(constant_id = 5) const uint TILES_M = 4;        // accumulators of a subgroup
layout(constant_id = 6) const uint TILES_N = 4;
layout(constant_id = 7) const uint BLOCK_K = 32;
layout(constant_id = 8) const bool TAIL = true;     // k is not a multiple of BLOCK_K
layout(constant_id = 9) const uint LOAD_AHEAD = 0;  // operands are loaded at most this many matrices of a k-tile ahead, 0: any
layout(constant_id = 10) const uint GROUP_M = 8;    // see lib/gemm_order.glsl
layout(constant_id = 11) const bool A_BY_K = true;  // k is A's contiguous axis
layout(constant_id = 12) const bool B_BY_K = false;
layout(constant_id = 13) const bool A_ALIGNED = true;  // offset and strides are multiples of 8
layout(constant_id = 14) const bool B_ALIGNED = true;
layout(constant_id = 15) const bool PARTIAL = false;   // writes sums of a part of k, see lib/gemm_matrix.glsl
