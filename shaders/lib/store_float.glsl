// store_float: the way of O in float32 from matrices through shared memory to
// memory: all rows of the block, and as many matrices of their columns at a time
// as fit.
//
// Straight from the matrices it would take a test of the row around each element,
// and NVIDIA's compiler (driver 580) keeps an array of matrices in local memory,
// from the start, if its elements are read under a condition.
//
// The includer declares `shared uvec4 tile[TILE_SIZE]` and `const uint TILE_SIZE`,
// includes lib/tile_shape.glsl, and defines put_float(at, x), which stores one
// element of O.
#ifndef LIB_STORE_FLOAT_GLSL
#define LIB_STORE_FLOAT_GLSL

const uint FLOAT_FITTING = TILE_SIZE / BLOCK_M / (MAT_N / 4);  // 0: the host does not ask for floats
const uint FLOAT_TILES = FLOAT_FITTING == 0 ? 1 : FLOAT_FITTING < VALUE_TILES ? FLOAT_FITTING : VALUE_TILES;
const uint FLOAT_STAGES = (VALUE_TILES + FLOAT_TILES - 1) / FLOAT_TILES;
const uint FLOAT_ROW4 = FLOAT_TILES * (MAT_N / 4);  // uvec4 of one staged row
const uint FLOAT_LD = (FLOAT_ROW4 + 1) * BLOCK_M <= TILE_SIZE ? FLOAT_ROW4 + 1 : FLOAT_ROW4;  // for the banks, where there is room

// float_at returns where row `row` of the block and matrix column d are staged.
uint float_at(const uint row, const uint d) {
    return row * FLOAT_LD + d * (MAT_N / 4);
}

// store_floats writes the block's rows of O, matrix columns d0 to
// d0 + FLOAT_TILES - 1, from tile to memory. Every invocation of the workgroup
// calls it.
void store_floats(const uint o_base, const uint block_row, const uint d0) {
    barrier();  // tile written before it is read
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < BLOCK_M * FLOAT_ROW4 * 4; i += WORKGROUP_SIZE) {
        const uint row = i / (FLOAT_ROW4 * 4);
        const uint x = i % (FLOAT_ROW4 * 4);
        const uint col = d0 * MAT_N + x;
        if (block_row + row < p.seq_q && col < VALUE_DIM) {
            put_float(o_base + row * p.o_stride_s + col, uintBitsToFloat(tile[row * FLOAT_LD + x / 4][x % 4]));
        }
    }
}

#endif
