// decode_cache16: what attention_decode reads of a cache that has the format of Q, with the names of
// lib/decode_cache8.glsl: load_k and load_v are those of lib/decode_tensors.glsl.

#define Words uvec4
#define WORDS_QUAD(x, e) quad(x, e)
#define SCORE_SCALE(part) p.scale_log2
#define VALUE_SCALED(part, x) (x)
