// key_range: which keys a workgroup of a matrix kernel walks over, in whole tiles.
//
// Functions of one number each: with a struct of them NVIDIA's compiler no longer
// knows that all invocations agree on the bounds of the loop (head_dim 256 ran 1.5
// times slower).
//
// The includer includes lib/mask.glsl, lib/split_kv.glsl and lib/tile_shape.glsl.
#ifndef LIB_KEY_RANGE_GLSL
#define LIB_KEY_RANGE_GLSL

// block_keys returns up to which key some row of the block that starts at
// block_row sees keys.
int block_keys(const uint block_row) {
    return visible_keys(int(min(block_row + BLOCK_M, p.seq_q)) - 1);
}

// full_keys returns up to which key every row of the block sees every key, in
// whole tiles.
int full_keys(const uint block_row) {
#ifdef FEATURES
    if (WINDOW_LEFT) {
        return 0;  // the first tiles may be hidden from the last rows
    }
#endif
    return max(visible_keys(int(block_row)), 0) / int(BLOCK_N) * int(BLOCK_N);
}

#endif
