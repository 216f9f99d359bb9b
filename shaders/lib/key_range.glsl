// key_range: the keys that a workgroup of a matrix kernel walks over, in whole tiles.
//
// Each function returns one number. With a struct of them NVIDIA's compiler no longer knows
// that all invocations agree on the bounds of the loop (head_dim 256 ran 1.5 times slower).

// block_keys returns the key after the last one that some row of the block at block_row sees.
int block_keys(const uint block_row) {
    return visible_keys(int(min(block_row + BLOCK_M, p.seq_q)) - 1);
}

// full_keys returns the end of the keys that every row of the block sees, in whole tiles.
int full_keys(const uint block_row) {
    if (WINDOW_LEFT) {
        return 0;  // the first tiles may be hidden from the last rows
    }
    return max(visible_keys(int(block_row)), 0) / int(BLOCK_N) * int(BLOCK_N);
}
