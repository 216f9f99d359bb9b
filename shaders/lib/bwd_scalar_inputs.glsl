// bwd_scalar_inputs: the specialization constants 0 to 4 of the backward kernels on plain float32
// arithmetic, the tensors that they read, bindings 0 to 4, and load_q, load_k, load_v and load_do of
// four elements.
//
// The includer declares `const bool ALIGNED`.

#include "element.glsl"
#include "params_bwd.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint THREADS_X = 16;
layout(constant_id = 2) const uint BLOCK_M = 32;  // rows, or keys, of the workgroup
layout(constant_id = 3) const uint BLOCK_N = 32;  // keys, or rows, of a tile
layout(constant_id = 4) const uint DEPTH = 32;    // columns in shared memory at a time, of all four tensors

READ4(0, Q, q)
READ4(1, K, k)
READ4(2, V, v)
READ4(3, DO, do)
layout(binding = 4, scalar) readonly buffer Rows { vec2 rows[]; };
