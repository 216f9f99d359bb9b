// no_features: lib/features.glsl and lib/feature_tile.glsl of a problem without features, for
// lib/fwd_matrix.glsl. Macros are for calls that leave nothing in the kernel.

const bool LOGITS = false;
const bool KEY_MASK = false;

struct Block { bool exists; };

Block enter_block(const uint batch, const uint head, const uint row0, const uint rows) { return Block(true); }

float finish_row(const Block b, inout float m, inout float l) { return inverse_sum(l); }

#define hides_values() false
#define shows(block, col0, i) true
#define score_tile(S, block, place, row0, col0, cut) hide_keys(S, row0, col0)
#define kept_weight(weight, row0, col0, place) weight
