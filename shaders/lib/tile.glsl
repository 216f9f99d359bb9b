// tile: the way of V in 16 bits from memory, and of O from matrices through shared memory, in the
// forward kernels. lib/fwd_plain.glsl and lib/fwd_quant.glsl have the way of Q and K, and the tile.

const bool EXPONENTS = false;  // tiles of K and V have none: only lib/tile_f32x2.glsl's
const bool FLOAT_O = false;
const float HEADROOM = 0.0;    // m of a row is its maximum
const float P_UNIT = 1.0;

#define COPY uvec4

float largest(const uvec4 x) { return 0.0; }
void share_amax(const float first, const float second) {}
uvec2 tile_exponents() { return uvec2(0); }

uvec4 fetch_v(const uint base, const uint i, const uint last) {
    const uint col = copy_col(i);
    return copies_value(col) ? load_v(base + min(copy_row(i), last) * p.v_stride_s + col * 8) : uvec4(0);
}

#include "tile_stage.glsl"

// Of Q and of O.
const uint STAGES = (DIM_TILES + STAGE_TILES - 1) / STAGE_TILES;
#ifdef FEATURES
const uint VALUE_STAGES = (VALUE_TILES + STAGE_TILES - 1) / STAGE_TILES;
#else
#define VALUE_STAGES STAGES
#endif

// store_o writes the block's rows of O, matrix columns d0 to d0 + STAGE_TILES - 1, from tile to
// memory. Every invocation of the workgroup calls it.
void store_o(const uint o_base, const uint block_row, const uint d0) {
    barrier();  // tile written before it is read
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < BLOCK_M * STAGE8; i += WORKGROUP_SIZE) {
        const uint row = i / STAGE8;
        const uint col = d0 * MAT_N + i % STAGE8 * 8;
        if (block_row + row < p.seq_q && col < VALUE_DIM) {
            put_o(o_base + row * p.o_stride_s + col, tile[row * STAGE_LD + i % STAGE8]);
        }
    }
}
