// decode_cache8: what attention_decode reads of a cache of 8 bits.

#include "cache8.glsl"

// load_k returns 8 elements of K, and the bits of their scale; load_v of V.
uvec3 load_k(const uint at, const uint n) {
    const float scale = CACHE_FORMAT == Q8_0 ? unpackHalf2x16(uint(k_scale1[p.k_scale_offset + (at - p.k_offset) / BLOCK])).x : 1.0;
    return uvec3(k8[at / 8], floatBitsToUint(scale));
}

uvec3 load_v(const uint at, const uint n) {
    const float scale = CACHE_FORMAT == Q8_0 ? unpackHalf2x16(uint(v_scale1[p.v_scale_offset + (at - p.v_offset) / BLOCK])).x : 1.0;
    return uvec3(v8[at / 8], floatBitsToUint(scale));
}

// score_scale returns what the dot products of the part's queries and keys are multiplied by.
float score_scale(const Part part) {
    const float scale = CACHE_FORMAT == E4M3 && SCALED ? k_scale[p.k_scale_offset + part.kv_head * p.k_scale_stride_h] : 1.0;
    return p.scale_log2 * scale * (CACHE_FORMAT == E4M3 ? E4M3_UNIT : 1.0);
}

// value_scale returns what the sums of the part's values are multiplied by.
float value_scale(const Part part) {
    const float scale = CACHE_FORMAT == E4M3 && SCALED ? v_scale[p.v_scale_offset + part.kv_head * p.v_scale_stride_h] : 1.0;
    return scale * (CACHE_FORMAT == E4M3 ? E4M3_UNIT : 1.0);
}

#define Words uvec3
#define WORDS_QUAD(x, e) widen8(x[e], uintBitsToFloat(x.z))
#define SCORE_SCALE(part) score_scale(part)
#define VALUE_SCALED(part, x) ((x) * value_scale(part))
