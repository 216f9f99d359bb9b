// bwd_matrix_constants: the specialization constants of the backward kernels on cooperative
// matrices, 0 to 17.

#include "matrix_constants.glsl"

layout(constant_id = 7) const uint COL_RUN = 4;         // element i is of the column of element i % COL_RUN
layout(constant_id = 8) const bool SAME_LAYOUT = true;  // see lib/rows.glsl
layout(constant_id = 9) const bool LOCKSTEP = false;    // see lib/rows_coopmat.glsl
layout(constant_id = 10) const uint ROW_TILES = 1;      // matrix rows of tiles per subgroup
layout(constant_id = 11) const uint BLOCK_N = 32;       // rows of a tile of the tensors that are walked over
layout(constant_id = 12) const uint HEAD_DIM = 64;
layout(constant_id = 13) const bool CAUSAL = false;
layout(constant_id = 14) const bool ALIGNED = true;    // offsets and strides are multiples of 8, with F32X2 of 4
layout(constant_id = 15) const bool PREFETCH = true;   // the next tile waits in registers
layout(constant_id = 16) const bool PEEL_MASK = true;  // the masked tiles have a loop of their own
layout(constant_id = 17) const uint LOAD_AHEAD = 0;    // operands are loaded at most this many matrices of head_dim ahead, 0: any
