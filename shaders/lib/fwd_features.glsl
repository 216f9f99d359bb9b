// fwd_features: the features of a problem (lib/features.glsl), as the forward kernels call them. Without
// FEATURES these calls are constants, or leave no code.
//
// The includer includes lib/softmax.glsl and lib/mask.glsl.

#ifdef FEATURES
#define LOGITS_IF_NEEDED
#include "features.glsl"
#else

const bool LOGITS = false;
const bool KEY_MASK = false;

struct Block { bool exists; };

Block enter_block(const uint batch, const uint head, const uint row0, const uint rows) { return Block(true); }

float masked_score(const Block b, const float s, const int row, const int key) { return key < visible_keys(row) ? s : NEG_INF; }

float finish_row(const Block b, inout float m, inout float l) { return inverse_sum(l); }

// Macros leave nothing of their arguments.
#define has_value(block, key) true
#define is_kept(row, col) true

// Of lib/feature_tile.glsl:
#define hides_values() false
#define shows(block, col0, i) true
#define score_tile(S, block, place, row0, col0, cut) hide_keys(S, row0, col0)
#define kept_weight(weight, row0, col0, place) weight
#endif
