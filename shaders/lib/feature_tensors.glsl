// feature_tensors: the tensors that features read. The bindings of features that are off hold
// any tensor.
//
//     bias          (batch or 1, num_heads or 1, seq_q or 1, seq_kv)  f32 or ELEM
//     alibi_slopes  (num_heads) or (batch, num_heads)                 f32
//     sinks         (num_heads)                                       f32
//     key_mask      (batch, seq_kv)                                   bytes, 0 is hidden
//     cu_seqlens_q, cu_seqlens_kv  (batch+1)                          int
//
// The includer defines FEATURES_BINDING, the binding after its own last one, and
// includes lib/element.glsl.

layout(binding = FEATURES_BINDING, scalar) readonly buffer Bias { ELEM bias[]; };
layout(binding = FEATURES_BINDING, scalar) readonly buffer Bias32 { float bias32[]; };
layout(binding = FEATURES_BINDING + 1, scalar) readonly buffer ALiBiSlopes { float alibi_slopes[]; };
layout(binding = FEATURES_BINDING + 2, scalar) readonly buffer Sinks { float sinks[]; };
// Four bytes of the mask at a time: a device may lack 8-bit storage.
layout(binding = FEATURES_BINDING + 3, scalar) readonly buffer KeyMask { uint key_mask4[]; };
layout(binding = FEATURES_BINDING + 4, scalar) readonly buffer CuSeqlensQ { int cu_seqlens_q[]; };
layout(binding = FEATURES_BINDING + 5, scalar) readonly buffer CuSeqlensKV { int cu_seqlens_kv[]; };
