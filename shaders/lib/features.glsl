// features: the features of a problem, applied to blocks of rows, scores, weights and sums.
// attention.Problem (attention/problem.go) defines each feature.
//
// A workgroup that owns rows calls enter_block first. Then p describes the sequence of the block,
// with only those keys that some row of the block sees. Kernels walk over keys 0 to p.seq_kv-1 as
// without features, and so neither read nor compute the others. Rows count within the sequence. A
// workgroup that owns keys calls enter_keys, and new_block for each head.
//
// The includer defines FEATURES_ID and FEATURES_BINDING, see lib/params.glsl and lib/sequence.glsl,
// and LOGITS_IF_NEEDED if scores without their features do; includes lib/element.glsl, and the
// params with skip_rows, skip_keys and `uint num_heads()`, the heads of all batches' Q.

#ifdef FEATURES
#extension GL_EXT_control_flow_attributes : require

#ifdef LOGITS_IF_NEEDED
const bool LOGITS = SOFTCAP || ALIBI || BIAS;  // scores are turned into base-2 logits
#else
const bool LOGITS = true;
#endif

#include "softmax.glsl"
#include "mask.glsl"

#include "philox.glsl"
#include "sequence.glsl"

const float LOG2_E = 1.4426950408889634;  // exp(x) = exp2(x * LOG2_E)

// The values that are the same for all rows of a block.
struct Block {
    bool exists;       // the sequence has rows there
    uint first_key;    // of the block: its number in the sequence
    uint bias_at;      // element of row 0 and the first key
    uint key_mask_at;  // byte of the first key
    float slope;       // times log2(e)
    float sink;        // base 2
    uvec2 stream;      // of random numbers
#ifdef STORE
    uint page;         // of the head's pages, the first that is the block's (lib/pages.glsl)
    int pages;         // the block's
#endif
};

// new_block returns the Block of a batch and head whose keys begin at first_key of the
// sequence. The block exists.
Block new_block(const uint batch, const uint head, const uint first_key) {
    Block b;
    b.exists = true;
    b.first_key = first_key;
    b.bias_at = args.features.bias_offset + batch * args.features.bias_stride_b + head * args.features.bias_stride_h + first_key;
    b.key_mask_at = args.features.key_mask_offset + batch * args.features.key_mask_stride_b + first_key;
    b.slope = ALIBI ? alibi_slopes[args.features.slopes_offset + batch * args.features.slopes_stride_b + head] * LOG2_E : 0.0;
    b.sink = SINKS ? sinks[args.features.sinks_offset + head] * LOG2_E : NEG_INF;
    uint carry;
    b.stream.x = uaddCarry(args.features.stream_lo, batch * num_heads() + head, carry);
    b.stream.y = args.features.stream_hi + carry;
    return b;
}

// enter_block gives p the values of the rows row0 to row0+rows-1 of a batch and head, and returns
// their Block. The result is the same for all invocations of the workgroup. With STORE the keys of
// the block begin at its first page, so that no row may see the first of them.
Block enter_block(const uint batch, const uint head, const uint row0, const uint rows) {
    enter_sequence(batch);
    // The intervals of neighbouring rows touch. So some row sees each key from the first key of
    // the first row to the last key of the last row.
#ifdef STORE
    const uint page = pages_before(row0 / rows);
    const int pages = pages_of(row0 / rows);
    const int first = pages_from(row0 / rows) * int(rows);
#elif defined(KEY_STEP)
    const int first = visible_from(int(row0)) / KEY_STEP * KEY_STEP;  // keys before the window's are no row's, or some row's of another block
#else
    const int first = visible_from(int(row0));
#endif
    const int end = visible_keys(int(min(row0 + rows, p.seq_q)) - 1);
    const uint first_key = uint(first < end ? first : 0);  // not past the tensor: kernels may load key 0 before they check
    skip_keys(first_key);
    p.causal_shift -= int(first_key);
    p.seq_kv = uint(max(end - first, 0));
    Block b = new_block(batch, head, first_key);
    b.exists = row0 < p.seq_q;
#ifdef STORE
    b.page = page;
    b.pages = pages;
#endif
    return b;
}

// enter_keys gives p the values of the keys col0 to col0+keys-1 of a batch, and returns the
// first row that sees some of them; rows from p.seq_q on see none. There are no keys
// if col0 >= p.seq_kv. The same for all invocations of the workgroup.
uint enter_keys(const uint batch, const uint col0, const uint keys) {
    enter_sequence(batch);
    p.seq_q = uint(max(last_seeing(int(min(col0 + keys, p.seq_kv)) - 1), 0));
    return uint(first_seeing(int(col0)));
}

bool unmasked(const Block b, const uint key) {
    if (!KEY_MASK) {
        return true;
    }
    const uint at = b.key_mask_at + key;
    return (key_mask4[at / 4] >> at % 4 * 8 & 0xffu) != 0;
}

float bias_of(const Block b, const uint row, const uint key) {
    const uint at = b.bias_at + row * args.features.bias_stride_s + key;
    return BIAS_F32 ? bias32[at] : WIDEN(bias[at]);
}

// has_value reports whether weights may multiply the value of a key of the block. If the key
// mask, or a bias that all rows share, hides the key, the weights are 0, but 0 * NaN is NaN.
bool has_value(const Block b, const uint key) {
    bool hidden = false;
    if (BIAS && args.features.bias_stride_s == 0) {  // the same for all invocations
        hidden = bias_of(b, 0, key) == NEG_INF;
    }
    return all(bvec2(unmasked(b, key), !hidden));  // && would branch in each invocation independently
}

// softcap returns a base-2 logit after Softcap,
//
//     log2(e) * Softcap * tanh(y),  y = x / (log2(e) * Softcap)
//
// with tanh(y) = (1 - t) / (1 + t) for t = exp(-2y) = exp2(-2x / Softcap). GLSL's tanh may
// overflow where this is 1.
float softcap(const float x) {
    const float t = exp2(-abs(x) * args.features.softcap_in);
    const float y = args.features.softcap_out * (1.0 - t) / (1.0 + t);
    return x < 0.0 ? -y : y;
}

// in_window reports whether a row sees a key of the block by its position.
bool in_window(const int row, const int key) {
    return key >= visible_from(row) && key < visible_keys(row);
}

// last_key returns the last key of the block; 0 if it has none.
uint last_key() { return max(p.seq_kv, 1) - 1; }

// score returns the score of a row and a key of the block. s is their dot product, s * scale
// the base-2 logit. With LOGITS the score is the logit with all features, else s itself. It is
// -inf if the row does not see the key, even if s is NaN. `seen` is the result of the masks.
// Row and key may be outside the sequence.
float score(const Block b, const float s, const float scale, const int row, const int key, bool seen) {
    float x = s;
    if (LOGITS) {
        x = s * scale;
        if (SOFTCAP) {
            x = softcap(x);
        }
        if (BIAS) {
            const float y = bias_of(b, min(uint(row), p.seq_q - 1), min(uint(key), last_key()));
            seen = seen && y != NEG_INF;  // x may be NaN or +inf there
            x = fma(y, LOG2_E, x);
        }
        if (ALIBI) {
            x = fma(-b.slope, abs(float(row + p.causal_shift - key)), x);
        }
    }
    return seen ? x : NEG_INF;
}

// masked_score is score that evaluates the masks itself.
float masked_score(const Block b, const float s, const int row, const int key) {
    const bool seen = in_window(row, key) && unmasked(b, min(uint(key), last_key()));
    return score(b, s, args.plain.scale_log2, row, key, seen);
}

// kept_of_four returns which weights dropout keeps, of a row and the keys 4*group to
// 4*group+3 of the sequence.
bvec4 kept_of_four(const Block b, const uint row, const uint group) {
    const uvec4 words = philox(uvec4(group, row, b.stream), uvec2(args.features.seed_lo, args.features.seed_hi));
    return greaterThanEqual(words, uvec4(args.features.drop_below));
}

float keep_scale() { return DROPOUT ? args.features.keep_scale : 1.0; }

// add_sink adds the sink to the maximum m of a row and to its sum l, which is relative to m. It
// returns the factor of weights that are relative to the old m.
float add_sink(const Block b, inout float m, inout float l) {
    if (!SINKS) {
        return 1.0;
    }
    const float top = max(m, b.sink);  // never -inf, as m is not
    const float alpha = exp2(m - top);
    l = fma(l, alpha, exp2(b.sink - top));
    m = top;
    return alpha;
}

// finish_row adds the sink to m and l of a row. It returns the factor of the row's O, which is
// a sum relative to the old m.
float finish_row(const Block b, inout float m, inout float l) {
    const float alpha = add_sink(b, m, l);
    return inverse_sum(l) * (alpha * keep_scale());
}
#endif
