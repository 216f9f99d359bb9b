// bwd_matrix_inputs: the tensors that the backward kernels on matrices read, bindings 0 to 4, and
// load_q, load_k, load_v and load_do of eight elements. With F32X2 they are of float.

#include "element.glsl"
#include "params_bwd.glsl"
#ifdef F32X2
#include "f32x2.glsl"
#else
#include "load8.glsl"
#endif
#include "matrix_types.glsl"
#include "rows.glsl"

READ8(0, Q, q)
READ8(1, K, k)
READ8(2, V, v)
READ8(3, DO, do)
layout(binding = 4, scalar) readonly buffer Rows { vec2 rows[]; };
