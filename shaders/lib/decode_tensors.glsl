// decode_tensors: the bindings of attention_decode. What a call does not have holds another
// tensor, and is not read.
#ifndef APPEND
#define QUERY readonly
#define CACHE readonly
#elif defined(MATRIX)
#define QUERY
#define CACHE nonprivate  // an invocation reads what others of its workgroup have written
#else
#define QUERY
#define CACHE coherent
#endif
layout(binding = 0, scalar) QUERY buffer Q { uvec4 q16[]; };
layout(binding = 0, scalar) QUERY buffer Q1 { ELEM q1[]; };
#ifdef CACHE8
layout(binding = 1, scalar) readonly buffer K { uvec2 k8[]; };
layout(binding = 1, scalar) readonly buffer K16 { uvec4 k16[]; };
layout(binding = 2, scalar) readonly buffer V { uvec2 v8[]; };
layout(binding = 2, scalar) readonly buffer V16 { uvec4 v16[]; };
#else
layout(binding = 1, scalar) CACHE buffer K { uvec4 k16[]; };
layout(binding = 1, scalar) CACHE buffer K1 { ELEM k1[]; };
layout(binding = 2, scalar) CACHE buffer V { uvec4 v16[]; };
layout(binding = 2, scalar) CACHE buffer V1 { ELEM v1[]; };
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
#ifdef APPEND
layout(binding = 15, scalar) readonly buffer NewK { uvec4 new_k16[]; };
layout(binding = 15, scalar) readonly buffer NewK1 { ELEM new_k1[]; };
layout(binding = 16, scalar) readonly buffer NewV { uvec4 new_v16[]; };
layout(binding = 16, scalar) readonly buffer NewV1 { ELEM new_v1[]; };
layout(binding = 17, scalar) readonly buffer Cos { float cos_table[]; };
layout(binding = 17, scalar) readonly buffer Cos4 { vec4 cos_table4[]; };
layout(binding = 18, scalar) readonly buffer Sin { float sin_table[]; };
layout(binding = 18, scalar) readonly buffer Sin4 { vec4 sin_table4[]; };
#endif

DEFINE_LOAD16(load_q, q16, q1)
#ifndef CACHE8
DEFINE_LOAD16(load_k, k16, k1)
DEFINE_LOAD16(load_v, v16, v1)
#endif
#ifdef APPEND
DEFINE_LOAD16(load_new_k, new_k16, new_k1)
DEFINE_LOAD16(load_new_v, new_v16, new_v1)
DEFINE_STORE16(store_q, q16, q1)
DEFINE_STORE16(store_k, k16, k1)
DEFINE_STORE16(store_v, v16, v1)
#endif
