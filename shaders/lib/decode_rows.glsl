// decode_rows: what a row sees, and what features make of its scores (attention_decode.comp).

// A Row is what is known of a row of a unit.
struct Row {
    int position;  // of its query in the sequence
    int from;      // the keys that it sees, but for those that tree hides
    int end;
    uvec2 tree;    // the new keys that it sees
    float slope;   // times log2(e)
    uint bias_at;
};

uint query_of(const uint row) { return by_group(min(row, p.group * p.seq_q - 1)); }

uint head_of(const uint kv_head, const uint row) {
    const uint last = min(row, p.group * p.seq_q - 1);
    return kv_head * p.group + last - by_group(last) * p.group;
}

uint q_at(const Part part, const uint r) {
    const uint row = part.row0 + r;
    return p.q_offset + part.batch * p.q_stride_b + head_of(part.kv_head, row) * p.q_stride_h + query_of(row) * p.q_stride_s;
}

Row row_of(const Part part, const uint r) {
    const uint row = part.row0 + r;
    const uint query = query_of(row);
    const uint head = head_of(part.kv_head, row);
    Row x;
    x.position = part.sequence.keys - int(p.seq_q) + int(query);
    x.from = part.sequence.from;
    if (WINDOW) {
        x.from = max(x.from, x.position - p.window_left);
    }
    x.end = CAUSAL && !TREE ? x.position + 1 : part.sequence.keys;
    if (TREE) {
        const uint at = p.tree_mask_offset + part.batch * p.tree_mask_stride_b + query * p.tree_mask_stride_s;
        x.tree = uvec2(tree_mask[at], tree_mask[at + 1]);
    }
    x.slope = ALIBI ? alibi_slopes[p.slopes_offset + part.batch * p.slopes_stride_b + head] * LOG2_E : 0.0;
    x.bias_at = HEAD_AT(bias, part.batch, head) + query * p.bias_stride_s;
    return x;
}

// sees reports whether the row sees a key, which may be outside the sequence.
bool sees(const Row row, const Part part, const int key) {
    const bool inside = key >= row.from && key < row.end;
    if (!TREE) {
        return inside;
    }
    const int n = key - (part.sequence.keys - int(p.seq_q));  // of the new keys, if it is not negative
    const uint word = n < 32 ? row.tree.x : row.tree.y;
    return inside && (n < 0 || (word >> (n & 31) & 1u) != 0);
}

// visible_to_all returns the keys that all rows of the part see, from x to y-1.
ivec2 visible_to_all(const Part part) {
    const int old = part.sequence.keys - int(p.seq_q);
    ivec2 keys = ivec2(part.sequence.from, TREE ? old : part.sequence.keys);
    if (WINDOW) {
        keys.x = max(keys.x, old + int(query_of(part.row0 + ROWS - 1)) - p.window_left);
    }
    if (CAUSAL && !TREE) {
        keys.y = old + int(query_of(part.row0)) + 1;
    }
    return keys;
}

// logit returns what the features make of s, the scaled dot product of a row and a key in base
// 2, and -inf where a bias hides the key.
float logit(const Row row, const Part part, const float s, const int key) {
    float x = s;
    if (SOFTCAP) {
        const float t = exp2(-abs(x) * p.softcap_in);
        const float y = p.softcap_out * (1.0 - t) / (1.0 + t);  // as in lib/features.glsl
        x = x < 0.0 ? -y : y;
    }
    if (ALIBI) {
        x = fma(-row.slope, abs(float(row.position - key)), x);
    }
    if (BIAS) {
        const uint at = row.bias_at + uint(clamp(key, part.sequence.from, part.end - 1));
        const float y = BIAS_F32 ? bias32[at] : WIDEN(bias1[at]);
        x = y != NEG_INF ? fma(y, LOG2_E, x) : NEG_INF;
    }
    return x;
}

// score returns the logit, and -inf where the row does not see the key.
float score(const Row row, const Part part, const float s, const int key) {
    const bool seen = sees(row, part, key);
    const float x = logit(row, part, s, key);
    return seen ? x : NEG_INF;
}

// A maximum is raised when a score exceeds it by so much: weights up to 2^8 do no harm, and most
// tiles then need no maximum over lanes.
const float SLACK = 8.0;

const uint LOOKUPS = PAGE_SIZE == 0 || PAGE_SIZE >= TILE ? 1 : KEYS;  // in the block table, for the keys of a team

uint look_up(const Part part, const uint key) {
    const uint page = uint(block_table[p.block_table_offset + part.batch * p.block_table_stride_b + key / PAGE_SIZE]);
    found_bad |= page < p.pages ? 0 : BAD_PAGE;
    return page < p.pages ? page : 0;
}
