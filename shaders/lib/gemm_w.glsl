// gemm_w: the rows of a skinny matrix W that belong to a block of columns of a product, in shared
// memory. W is (n, COLUMNS) of ELEM for each product of the batch, at R of lib/gemm_params.glsl.
//
// The includer declares the constants COLUMNS, WORKGROUP_SIZE and BLOCK_N, a multiple of 4,
// includes lib/element.glsl and lib/gemm_params.glsl before, and has W as `uint16_t r16[]`.

const uint BLOCK_N4 = BLOCK_N / 4;

// (COLUMNS, BLOCK_N) in float32, with zeros beyond n.
shared vec4 w_tile[COLUMNS * BLOCK_N4];

// load_w fills it for the columns from col on. A barrier follows it, and precedes it if there was
// a block before.
void load_w(const uint batch, const uint col) {
    for (uint i = gl_LocalInvocationIndex; i < COLUMNS * BLOCK_N4; i += WORKGROUP_SIZE) {
        vec4 v = vec4(0.0);
        [[unroll]] for (uint e = 0; e < 4; e++) {
            const uint x = col + i % BLOCK_N4 * 4 + e;
            if (x < p.n) {
                v[e] = WIDEN(r16[ROW_AT(r, batch, x) + i / BLOCK_N4]);
            }
        }
        w_tile[i] = v;
    }
}
