// params: the push constants of the attention kernels with and without FEATURES, and the
// specialization constants of features.
//
//     BEGIN_PARAMS
//         members
//     END_PARAMS
//
// Without FEATURES the push constants are p. With FEATURES they are args.plain, behind which those
// of features are, and p is a private copy, which lib/features.glsl changes for a block.
// PLAIN are those that the host has given.
//
// A feature that is off is compiled away; shaders/variants.go says which modules have features at
// all. Their includer defines FEATURES_ID, the constant_id after its own last one.

#include "strides.glsl"

#ifdef FEATURES
layout(constant_id = FEATURES_ID) const uint VALUE_DIM = 64;
layout(constant_id = FEATURES_ID + 1) const bool WINDOW_LEFT = false;   // hides keys before a row's own
layout(constant_id = FEATURES_ID + 2) const bool WINDOW_RIGHT = false;  // hides keys after it; a causal mask sets it too
layout(constant_id = FEATURES_ID + 3) const bool SOFTCAP = false;
layout(constant_id = FEATURES_ID + 4) const bool ALIBI = false;
layout(constant_id = FEATURES_ID + 5) const bool BIAS = false;
layout(constant_id = FEATURES_ID + 6) const bool BIAS_F32 = true;  // else of the element type
layout(constant_id = FEATURES_ID + 7) const bool KEY_MASK = false;
layout(constant_id = FEATURES_ID + 8) const bool SINKS = false;
layout(constant_id = FEATURES_ID + 9) const bool VARLEN = false;
layout(constant_id = FEATURES_ID + 10) const bool DROPOUT = false;

// Strides of shared axes are 0. Batches and heads are counted as in the dispatch.
struct Features {
    int window_left;        // row i, at key i + shift, sees this many keys before
    int window_right;       // and after that one
    float softcap_in;       // 2 / Softcap
    float softcap_out;      // log2(e) * Softcap
    STRIDES(bias)
    BATCH_STRIDE(slopes)
    uint sinks_offset;
    BATCH_STRIDE(key_mask)
    uint cu_seqlens_q_offset;
    uint cu_seqlens_kv_offset;
    uint total_q;           // rows of packed Q; cu_seqlens_q is clamped to it
    uint total_kv;
    uint bottom_right;      // 1: row i of a packed sequence is at key i + seq_kv - seq_q; 0: at key i
    uint drop_below;        // a weight is dropped if its random word is below
    float keep_scale;       // 1/(1-P), the factor of the other weights
    uint seed_lo;
    uint seed_hi;
    uint stream_lo;         // Dropout.Offset, for the first head of the first batch
    uint stream_hi;
};

#define BEGIN_PARAMS struct Plain {
#define END_PARAMS                                  \
    };                                              \
    layout(push_constant, scalar) uniform Params {  \
        Plain plain;                                \
        Features features;                          \
    } args;                                         \
    Plain p = args.plain;
#define PLAIN args.plain
#else
#define BEGIN_PARAMS layout(push_constant, scalar) uniform Params {
#define END_PARAMS } p;
#define PLAIN p
#define VALUE_DIM HEAD_DIM
#endif
