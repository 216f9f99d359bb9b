// bwd_scalar_inputs: the tensors that the backward kernels on plain float32 arithmetic read,
// bindings 0 to 4, and load_q, load_k, load_v and load_do of four elements.
//
// The includer includes lib/element.glsl, and declares `const bool ALIGNED`.

layout(binding = 0, scalar) readonly buffer Q { ELEM4 q4[]; };
layout(binding = 0, scalar) readonly buffer Q1 { ELEM q1[]; };
layout(binding = 1, scalar) readonly buffer K { ELEM4 k4[]; };
layout(binding = 1, scalar) readonly buffer K1 { ELEM k1[]; };
layout(binding = 2, scalar) readonly buffer V { ELEM4 v4[]; };
layout(binding = 2, scalar) readonly buffer V1 { ELEM v1[]; };
layout(binding = 3, scalar) readonly buffer DO { ELEM4 do4[]; };
layout(binding = 3, scalar) readonly buffer DO1 { ELEM do1[]; };
layout(binding = 4, scalar) readonly buffer Rows { vec2 rows[]; };

DEFINE_LOAD4(load_q, q4, q1)
DEFINE_LOAD4(load_k, k4, k1)
DEFINE_LOAD4(load_v, v4, v1)
DEFINE_LOAD4(load_do, do4, do1)
