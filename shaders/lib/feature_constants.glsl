// feature_constants: the features of a problem as specialization constants. A feature that
// is off is compiled away; shaders/variants.go says which modules have features at all.
//
// The includer defines FEATURES_ID, the constant_id after its own last one.

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
