// bwd_scalar_inputs: the tensors that the backward kernels on plain float32 arithmetic read,
// bindings 0 to 4, and load_q, load_k, load_v and load_do of four elements.
//
// The includer includes lib/element.glsl, and declares `const bool ALIGNED`.

READ4(0, Q, q)
READ4(1, K, k)
READ4(2, V, v)
READ4(3, DO, do)
layout(binding = 4, scalar) readonly buffer Rows { vec2 rows[]; };
