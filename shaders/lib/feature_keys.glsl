// feature_keys: the visible keys of a tile in shared memory, with features, for the matrix
// kernels that own rows.
//
// The includer includes lib/features.glsl and lib/tile_shape.glsl.

#ifdef FEATURES

shared uint shown[KEY_MASK ? BLOCK_N : 1];  // whether the key mask shows a key of the tile

// copy_key returns the key of the block that is in copy number i of the tile of keys
// from col0 on, see fetch_v.
uint copy_key(const int col0, const uint i) { return min(col0 + copy_row(i), last_key()); }

// hides_values reports whether masks may hide values of the tile from all rows. It is the same
// for all invocations of the workgroup. If false, `shows` is true.
#ifdef KEY_STEP  // the tile may begin before the first key that some row sees
bool hides_values() { return KEY_MASK || WINDOW_LEFT || BIAS && args.features.bias_stride_s == 0; }
#else
bool hides_values() { return KEY_MASK || BIAS && args.features.bias_stride_s == 0; }
#endif

// shows reports whether the value of copy number i may be multiplied by weights.
#ifdef KEY_STEP
bool shows(const Block b, const int col0, const uint i) {
    return all(bvec2(has_value(b, copy_key(col0, i)), int(copy_key(col0, i)) >= visible_from(0)));
}
#else
bool shows(const Block b, const int col0, const uint i) { return has_value(b, copy_key(col0, i)); }
#endif

// put_shown fills `shown` as put_kv does the tile.
void put_shown(const Block b, const int col0, const uint i) {
    if (KEY_MASK && copies(i) && copy_col(i) == 0) {
        shown[copy_row(i)] = uint(unmasked(b, copy_key(col0, i)));
    }
}

#else
#define put_shown(block, col0, i)
#endif

// no_row_sees reports whether the window hides the tile of keys from col0 on from
// all rows of the subgroup whose first is row0.
bool no_row_sees(const int row0, const int col0) {
    return WINDOW_RIGHT && col0 >= visible_keys(row0 + int(SUBGROUP_ROWS) - 1) || WINDOW_LEFT && col0 + int(BLOCK_N) <= visible_from(row0);
}

// all_rows_see reports whether the window hides no key of that tile from any of these rows.
bool all_rows_see(const int row0, const int col0) {
    return col0 + int(BLOCK_N) <= visible_keys(row0) && (!WINDOW_LEFT || visible_from(row0 + int(SUBGROUP_ROWS) - 1) <= col0);
}
