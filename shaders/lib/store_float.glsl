// store_float: the way of O in float32 from matrices through shared memory to device memory:
// all rows of the block, with as many matrices of columns at a time as fit.
//
// Stores straight from the matrices would need a test of the row around each element, and
// NVIDIA's compiler (driver 580) keeps an array of matrices in local memory, in the whole
// kernel, if its elements are read under a condition.

#include "float_tile.glsl"

// store_floats writes the block's rows of O, matrix columns d0 to d0 + FLOAT_TILES - 1, from tile
// to memory. Every invocation of the workgroup calls it.
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
