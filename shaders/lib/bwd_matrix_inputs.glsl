// bwd_matrix_inputs: the tensors that the backward kernels on matrices read, bindings 0 to 4, and
// load_q, load_k, load_v and load_do of eight elements. With F32X2 they are of float.
//
// The includer includes lib/bwd_matrix_constants.glsl and lib/element.glsl. It gets
// lib/matrix_types.glsl and lib/rows.glsl, too.

#ifdef F32X2
layout(binding = 0, scalar) readonly buffer Q { vec4 q4[]; };
layout(binding = 0, scalar) readonly buffer Q1 { float q1[]; };
layout(binding = 1, scalar) readonly buffer K { vec4 k4[]; };
layout(binding = 1, scalar) readonly buffer K1 { float k1[]; };
layout(binding = 2, scalar) readonly buffer V { vec4 v4[]; };
layout(binding = 2, scalar) readonly buffer V1 { float v1[]; };
layout(binding = 3, scalar) readonly buffer DO { vec4 do4[]; };
layout(binding = 3, scalar) readonly buffer DO1 { float do1[]; };
layout(binding = 4, scalar) readonly buffer Rows { vec2 rows[]; };
#include "f32x2.glsl"
#else
layout(binding = 0, scalar) readonly buffer Q { uvec4 q8[]; };
layout(binding = 0, scalar) readonly buffer Q16 { uint16_t q16[]; };
layout(binding = 1, scalar) readonly buffer K { uvec4 k8[]; };
layout(binding = 1, scalar) readonly buffer K16 { uint16_t k16[]; };
layout(binding = 2, scalar) readonly buffer V { uvec4 v8[]; };
layout(binding = 2, scalar) readonly buffer V16 { uint16_t v16[]; };
layout(binding = 3, scalar) readonly buffer DO { uvec4 do8[]; };
layout(binding = 3, scalar) readonly buffer DO16 { uint16_t do16[]; };
layout(binding = 4, scalar) readonly buffer Rows { vec2 rows[]; };
#include "load8.glsl"
#endif

#include "matrix_types.glsl"
#include "rows.glsl"

#ifdef F32X2
DEFINE_LOAD_FLOATS8(load_q, q4, q1)
DEFINE_LOAD_FLOATS8(load_k, k4, k1)
DEFINE_LOAD_FLOATS8(load_v, v4, v1)
DEFINE_LOAD_FLOATS8(load_do, do4, do1)
#else
DEFINE_LOAD8(load_q, q8, q16)
DEFINE_LOAD8(load_k, k8, k16)
DEFINE_LOAD8(load_v, v8, v16)
DEFINE_LOAD8(load_do, do8, do16)
#endif
