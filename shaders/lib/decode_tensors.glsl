// decode_tensors: the bindings of attention_decode. What a call does not have holds another
// tensor, and is not read.
layout(binding = 0, scalar) readonly buffer Q { uvec4 q16[]; };
layout(binding = 0, scalar) readonly buffer Q1 { ELEM q1[]; };
#ifdef CACHE8
layout(binding = 1, scalar) readonly buffer K { uvec2 k8[]; };
layout(binding = 1, scalar) readonly buffer K16 { uvec4 k16[]; };
layout(binding = 2, scalar) readonly buffer V { uvec2 v8[]; };
layout(binding = 2, scalar) readonly buffer V16 { uvec4 v16[]; };
#else
layout(binding = 1, scalar) readonly buffer K { uvec4 k16[]; };
layout(binding = 1, scalar) readonly buffer K1 { ELEM k1[]; };
layout(binding = 2, scalar) readonly buffer V { uvec4 v16[]; };
layout(binding = 2, scalar) readonly buffer V1 { ELEM v1[]; };
#endif
layout(binding = 3, scalar) writeonly buffer O { ELEM o1[]; };
layout(binding = 4, scalar) writeonly buffer LSE { float lse_out[]; };
layout(binding = 5, scalar) readonly buffer SeqLens { int seq_lens[]; };
layout(binding = 6, scalar) readonly buffer BlockTable { int block_table[]; };
layout(binding = 7, scalar) coherent buffer State { uint state[]; };
layout(binding = 8, scalar) coherent buffer Parts { float parts[]; };
layout(binding = 8, scalar) coherent buffer Parts4 { vec4 parts4[]; };
layout(binding = 9, scalar) readonly buffer TreeMask { uint tree_mask[]; };
layout(binding = 10, scalar) readonly buffer ALiBiSlopes { float alibi_slopes[]; };
layout(binding = 11, scalar) readonly buffer Bias { float bias32[]; };
layout(binding = 11, scalar) readonly buffer Bias1 { ELEM bias1[]; };
layout(binding = 12, scalar) readonly buffer Sinks { float sinks[]; };
layout(binding = 13, scalar) readonly buffer LeftPad { int left_pad[]; };
layout(binding = 14, scalar) readonly buffer BatchIdx { int batch_idx[]; };
#ifdef CACHE8
layout(binding = 15, scalar) readonly buffer KScale { float k_scale[]; };       // e4m3: of a key head
layout(binding = 15, scalar) readonly buffer KScale1 { uint16_t k_scale1[]; };  // q8_0: float16, of a block
layout(binding = 16, scalar) readonly buffer VScale { float v_scale[]; };
layout(binding = 16, scalar) readonly buffer VScale1 { uint16_t v_scale1[]; };
#endif

DEFINE_LOAD16(load_q, q16, q1)
#ifndef CACHE8
DEFINE_LOAD16(load_k, k16, k1)
DEFINE_LOAD16(load_v, v16, v1)
#endif
