// fwd_plain: what lib/fwd_matrix.glsl needs to know of tensors of 16 bits.
//
// Shared memory holds rows of 16-bit elements:
//
//     tile rows 0       .. BLOCK_N - 1      a tile of K
//               BLOCK_N .. 2*BLOCK_N - 1    the same keys of V
//
// Before the walk over the keys it holds columns of Q, after it columns of O. Columns past head_dim
// are zero. Rows past the last key repeat the last key: their weights are exactly zero.

#include "tile_shape.glsl"

#define MatQ MatA
#define MatK MatB
#define MatS MatC
#define NO_SUM 0.0
#define FOLD(i) PLAIN.scale_log2  // of row number i of this invocation, S * FOLD are base-2 logits

const uint K_TILES = DIM_TILES;    // matrices of head_dim
const uint K_CELL = MAT_N / 8;     // uvec4 of one of their rows
const uint K_LD = LD;
const uint V_AT = BLOCK_N * LD;
const uint TILE_SIZE = 2 * V_AT;
shared uvec4 tile[TILE_SIZE];

MatC scores_of(const MatC sum) { return sum; }

// m_shift is added to m of a row in the end.
float m_shift(const uint q_at, const uint row) { return 0.0; }

// fetch_k returns copy number i of the key tile whose first key starts at
// base. Rows beyond `last` read row `last`.
uvec4 fetch_k(const uint base, const uint i, const uint last) {
    const uint col = copy_col(i);
    return copies_dim(col) ? load_k(base + min(copy_row(i), last) * p.k_stride_s + col * 8) : uvec4(0);
}

void put_kv(const uint i, const uvec4 k, const uvec4 v, const uvec2 exponents) {
    if (copies(i)) {
        const uint at = copy_row(i) * LD + copy_col(i);
        tile[at] = k;
        tile[V_AT + at] = v;
    }
}

#include "tile.glsl"

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
