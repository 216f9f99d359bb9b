// tile: the way of Q (stage_q), K and V (fetch_k, fetch_v, put_kv) from memory through shared
// memory into the matrices of the forward kernels, and the way of O back (store_o).
//
// A workgroup owns BLOCK_M rows of one head: NUM_SUBGROUPS subgroups of
// ROW_TILES * MAT_M rows each. Shared memory holds rows of 16-bit elements:
//
//     tile rows 0       .. BLOCK_N - 1      a tile of K
//               BLOCK_N .. 2*BLOCK_N - 1    the same keys of V
//
// (lib/tile_quant.glsl says what is different with QUANT.) Before the walk over the keys it holds columns of Q, after it columns of O. Columns past head_dim
// are zero. Rows past the last key repeat the last key: their weights are exactly zero.

#include "tile_shape.glsl"

#ifdef QUANT
#include "tile_quant.glsl"
#else
const uint TILE_SIZE = 2 * BLOCK_N * LD;
shared uvec4 tile[TILE_SIZE];

#endif
#define COPY uvec4  // as in lib/tile_f32x2.glsl

#ifndef QUANT
// fetch_k returns copy number i of the key tile whose first key starts at
// base. Rows beyond `last` read row `last`.
uvec4 fetch_k(const uint base, const uint i, const uint last) {
    const uint col = copy_col(i);
    return copies_dim(col) ? load_k(base + min(copy_row(i), last) * p.k_stride_s + col * 8) : uvec4(0);
}
#endif

uvec4 fetch_v(const uint base, const uint i, const uint last) {
    const uint col = copy_col(i);
    return copies_value(col) ? load_v(base + min(copy_row(i), last) * p.v_stride_s + col * 8) : uvec4(0);
}

#ifndef QUANT
void put_kv(const uint i, const uvec4 k, const uvec4 v) {
    if (copies(i)) {
        const uint at = copy_row(i) * LD + copy_col(i);
        tile[at] = k;
        tile[at + BLOCK_N * LD] = v;
    }
}
#endif
#define put_kv(i, k, v, k_scale, v_scale) put_kv(i, k, v)  // lib/tile_f32x2.glsl scales

#include "tile_stage.glsl"

// Of Q and of O.
const uint STAGES = (DIM_TILES + STAGE_TILES - 1) / STAGE_TILES;
#ifdef FEATURES
const uint VALUE_STAGES = (VALUE_TILES + STAGE_TILES - 1) / STAGE_TILES;
#else
#define VALUE_STAGES STAGES
#endif

#ifndef QUANT
// stage_q copies the block's rows of Q, matrix columns d0 to
// d0 + STAGE_TILES - 1, into tile, negated where Scale is negative. Rows past
// the last one repeat it. Every invocation of the workgroup calls it.
void stage_q(const uint q_base, const uint block_row, const uint d0) {
    uvec4 x[STAGE_COPIES];  // all loads first: one wait instead of one each
    [[unroll]] for (uint i = 0; i < STAGE_COPIES; i++) {
        const uint at = i * WORKGROUP_SIZE + gl_LocalInvocationIndex;
        const uint row = min(at / STAGE8, p.seq_q - 1 - block_row);
        const uint col = d0 * (MAT_N / 8) + at % STAGE8;
        const bool inside = STAGES == 1 ? copies_dim(col) : col * 8 < HEAD_DIM;
        x[i] = inside ? load_q(q_base + row * p.q_stride_s + col * 8) ^ p.q_sign : uvec4(0);
    }
    PUT_STAGE(x)
}
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
