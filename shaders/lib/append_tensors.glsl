// append_tensors: the bindings of attention_append. What a call does not have holds another
// tensor, and is not touched.
layout(binding = 0, scalar) readonly buffer NewK { uvec4 new_k16[]; };
layout(binding = 0, scalar) readonly buffer NewK1 { ELEM new_k1[]; };
layout(binding = 1, scalar) readonly buffer NewV { uvec4 new_v16[]; };
layout(binding = 1, scalar) readonly buffer NewV1 { ELEM new_v1[]; };
#ifdef CACHE8
layout(binding = 2, scalar) writeonly buffer K { uvec2 k8[]; };
layout(binding = 3, scalar) writeonly buffer V { uvec2 v8[]; };
#else
layout(binding = 2, scalar) writeonly buffer K { uvec4 k16[]; };
layout(binding = 2, scalar) writeonly buffer K1 { ELEM k1[]; };
layout(binding = 3, scalar) writeonly buffer V { uvec4 v16[]; };
layout(binding = 3, scalar) writeonly buffer V1 { ELEM v1[]; };
#endif
layout(binding = 4, scalar) buffer Q { uvec4 q16[]; };
layout(binding = 4, scalar) buffer Q1 { ELEM q1[]; };
layout(binding = 5, scalar) readonly buffer SeqLens { int seq_lens[]; };
layout(binding = 6, scalar) readonly buffer BlockTable { int block_table[]; };
layout(binding = 7, scalar) buffer State { uint state[]; };
layout(binding = 8, scalar) readonly buffer Cos { float cos_table[]; };
layout(binding = 8, scalar) readonly buffer Cos4 { vec4 cos_table4[]; };
layout(binding = 9, scalar) readonly buffer Sin { float sin_table[]; };
layout(binding = 9, scalar) readonly buffer Sin4 { vec4 sin_table4[]; };
layout(binding = 10, scalar) readonly buffer BatchIdx { int batch_idx[]; };
#ifdef CACHE8
layout(binding = 11, scalar) buffer KScale { float k_scale[]; };       // e4m3: of a key head, read
layout(binding = 11, scalar) buffer KScale1 { uint16_t k_scale1[]; };  // q8_0: float16, of a block, written
layout(binding = 12, scalar) buffer VScale { float v_scale[]; };
layout(binding = 12, scalar) buffer VScale1 { uint16_t v_scale1[]; };
#endif

DEFINE_LOAD16(load_new_k, new_k16, new_k1)
DEFINE_LOAD16(load_new_v, new_v16, new_v1)
DEFINE_LOAD16(load_q, q16, q1)
#ifndef CACHE8
DEFINE_STORE16(store_k, k16, k1)
DEFINE_STORE16(store_v, v16, v1)
#endif
DEFINE_STORE16(store_q, q16, q1)
