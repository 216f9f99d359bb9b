// decode_constants: the specialization of attention_decode.
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
