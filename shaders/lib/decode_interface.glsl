// decode_interface: the specialization, the push constants and the tensors of attention_decode.
#include "strides.glsl"
#include "vec16.glsl"
#include "softmax.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;
layout(constant_id = 1) const uint SUBGROUP_SIZE = 32;  // all subgroups are full
layout(constant_id = 2) const uint TEAM = 16;           // lanes of a key: a power of two
layout(constant_id = 3) const uint ROWS = 4;            // of a unit: a power of two up to TEAM
layout(constant_id = 4) const uint KEYS = 4;            // of a team at a time: a power of two
layout(constant_id = 5) const uint HEAD_DIM = 128;
layout(constant_id = 6) const uint VALUE_DIM = 128;
layout(constant_id = 7) const uint PAGE_SIZE = 0;       // keys of a page, a power of two; 0: no pages
layout(constant_id = 8) const bool ALIGNED = true;      // offsets and strides of q, k, v are multiples of 16 bytes
layout(constant_id = 9) const bool CAUSAL = true;       // a query sees no new key after its own
layout(constant_id = 10) const bool TREE = false;       // the new keys that a query sees are bits of tree_mask
layout(constant_id = 11) const bool WINDOW = false;
layout(constant_id = 12) const bool SOFTCAP = false;
layout(constant_id = 13) const bool ALIBI = false;
layout(constant_id = 14) const bool BIAS = false;
layout(constant_id = 15) const bool BIAS_F32 = true;  // bias is float32, else ELEM
layout(constant_id = 16) const bool SINKS = false;
layout(constant_id = 17) const bool LEFT_PAD = false;
layout(constant_id = 18) const bool BATCH_IDX = false;
layout(constant_id = 19) const bool WRITE_LSE = true;
layout(constant_id = 20) const bool ALONE = false;  // the only sequence is divided evenly whatever its length
#ifdef CACHE8
layout(constant_id = 21) const uint CACHE_FORMAT = 0;  // lib/cache8.glsl
layout(constant_id = 22) const bool SCALED = true;     // of e4m3: key heads have scales
layout(constant_id = 23) const bool WIDE_K = true;     // on matrices: 16 bytes of a key to a lane, not 8
layout(constant_id = 24) const bool WIDE_V = true;     // likewise
#endif
#ifdef APPEND
layout(constant_id = 21) const uint ROTARY = 128;          // as in attention_append, multiples of VEC, in halves of 2 * VEC
layout(constant_id = 22) const bool INTERLEAVED = false;
layout(constant_id = 23) const bool TABLE_ALIGNED = true;
#endif
#ifdef CACHE8
#define TILES_ID 25
#else
#define TILES_ID 21
#endif
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint batch;
    uint seq_q;
    uint group;         // heads that share a key head
    uint group_inverse; // by_group
    uint kv_heads;
    uint row_blocks;   // ceil(group * seq_q / ROWS)
    int new_keys;      // that seq_lens does not count yet
    int capacity;      // keys that a sequence can have
    uint pages;        // that there are; without pages, sequences of the cache
    uint least_tiles;  // of a workgroup
    uint splits;       // workgroups of each unit, if each has its own
    float scale_log2;  // Scale * log2(e)
    int window_left;
    float softcap_in;   // 2 / Softcap
    float softcap_out;  // log2(e) * Softcap
    STRIDES(q)
    STRIDES(k)          // of a cache with pages, batches are pages
    STRIDES(v)
    STRIDES(o)
    STRIDES(lse)
    uint seq_lens_offset;
    BATCH_STRIDE(block_table)
    uint state_offset;
    uint tree_mask_offset;  // words of 32 bits
    uint tree_mask_stride_b;
    uint tree_mask_stride_s;
    BATCH_STRIDE(slopes)
    STRIDES(bias)
    uint sinks_offset;
    uint left_pad_offset;
    uint batch_idx_offset;
#ifdef CACHE8
    uint k_scale_offset;
    uint k_scale_stride_h;  // of e4m3
    uint v_scale_offset;
    uint v_scale_stride_h;
#endif
#ifdef APPEND
    STRIDES(new_k)
    STRIDES(new_v)
    uint cos_offset;
    uint sin_offset;
#endif
} p;

// What a call does not have holds another tensor, and is not read.
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
TENSOR16(0, QUERY, Q, q)
#ifdef CACHE8
layout(binding = 1, scalar) readonly buffer K { uvec2 k8[]; };
layout(binding = 1, scalar) readonly buffer K16 { uvec4 k16[]; };
layout(binding = 2, scalar) readonly buffer V { uvec2 v8[]; };
layout(binding = 2, scalar) readonly buffer V16 { uvec4 v16[]; };
#else
TENSOR16(1, CACHE, K, k)
TENSOR16(2, CACHE, V, v)
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
TENSOR16(15, readonly, NewK, new_k)
TENSOR16(16, readonly, NewV, new_v)
layout(binding = 17, scalar) readonly buffer Cos { float cos_table[]; };
layout(binding = 17, scalar) readonly buffer Cos4 { vec4 cos_table4[]; };
layout(binding = 18, scalar) readonly buffer Sin { float sin_table[]; };
layout(binding = 18, scalar) readonly buffer Sin4 { vec4 sin_table4[]; };
#endif

LOAD16(q)
#ifndef CACHE8
LOAD16(k)
LOAD16(v)
#endif
#ifdef APPEND
LOAD16(new_k)
LOAD16(new_v)
STORE16(q)
STORE16(k)
STORE16(v)
#endif
