// tile_bwd: the way of tensors from memory through shared memory into the matrices
// of the backward kernels, and the way of gradients back.
//
// A workgroup owns BLOCK_M rows of two tensors, which stay in registers: of Q and dO, or
// of K and V. It walks over tiles of BLOCK_N rows of the two others:
//
//     tile rows 0       .. BLOCK_N - 1    of Q, or of K
//               BLOCK_N .. 2*BLOCK_N - 1  of dO, or of V
//
// lib/tile_shape.glsl has the sizes; its keys are the rows of a tile here.
// Columns past head_dim are zero, with FEATURES up to the wider of head_dim and value_dim.
// Rows past the last one repeat it.
//
// The includer declares the specialization constants named here, the push
// constants, and load_q, load_k, load_v, load_do, put_dx and put_dv (lib/load8.glsl).

#include "tile_shape.glsl"

shared uvec4 tile[2 * BLOCK_N * LD];

#define COPY uvec4  // as in lib/tile_bwd_f32x2.glsl
#include "bwd_tensors.glsl"

// fetch returns copy number i of the tile whose first row starts at base, rows ld
// apart. Rows beyond `last` read row `last`.
uvec4 fetch(const uint tensor, const uint base, const uint ld, const uint i, const uint last) {
    const uint col = copy_col(i);
    return HAS_COLUMN(tensor, col) ? load_tensor(tensor, base + min(copy_row(i), last) * ld + col * 8) : uvec4(0);
}

void put(const uint i, const uvec4 first, const uvec4 second) {
    if (copies(i)) {
        const uint at = copy_row(i) * LD + copy_col(i);
        tile[at] = first;
        tile[at + BLOCK_N * LD] = second;
    }
}

#include "tile_stage.glsl"

const uint STAGES = (WIDE_TILES + STAGE_TILES - 1) / STAGE_TILES;

// stage_in copies rows that the workgroup owns, matrix columns d0 to d0 + STAGE_TILES - 1, into
// tile. Rows beyond `last` repeat it. Every invocation of the workgroup calls it.
void stage_in(const uint tensor, const uint base, const uint ld, const uint last, const uint d0) {
    uvec4 x[STAGE_COPIES];  // all loads first: one wait instead of one each
    [[unroll]] for (uint i = 0; i < STAGE_COPIES; i++) {
        const uint at = i * WORKGROUP_SIZE + gl_LocalInvocationIndex;
        const uint col = d0 * (MAT_N / 8) + at % STAGE8;
        const bool inside = STAGES == 1 ? HAS_COLUMN(tensor, col) : col * 8 < DIM_OF(tensor);
        x[i] = inside ? load_tensor(tensor, base + min(at / STAGE8, last) * ld + col * 8) : uvec4(0);
    }
    PUT_STAGE(x)
}

// stage_out writes rows that the workgroup owns, matrix columns d0 to
// d0 + STAGE_TILES - 1, from tile to dV, or to dX. Rows beyond `last` are not there.
// Every invocation of the workgroup calls it.
void stage_out(const bool TO_DV, const uint base, const uint ld, const uint last, const uint d0) {
    barrier();  // tile written before it is read
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < BLOCK_M * STAGE8; i += WORKGROUP_SIZE) {
        const uint row = i / STAGE8;
        const uint col = d0 * MAT_N + i % STAGE8 * 8;
        if (row <= last && col < DIM_OF(TO_DV ? TENSOR_V : TENSOR_K)) {
            const uint at = base + row * ld + col;
            const uvec4 x = tile[row * STAGE_LD + i % STAGE8];
            if (TO_DV) {
                put_dv(at, x);
            } else {
                put_dx(at, x);
            }
        }
    }
    barrier();  // read before the next columns are written
}

// A tensor of the rows of a subgroup, and weights as left matrices.
struct Owned { MatA at[ROW_TILES * WIDE_TILES]; };  // (SUBGROUP_ROWS, head_dim)
struct Left { MatA at[ROW_TILES]; };  // (SUBGROUP_ROWS, MAT_N)

// load_owned loads a tensor's rows that the subgroup owns, of which the workgroup's start at base.
void load_owned(out Owned own, const uint tensor, const uint base, const uint ld, const uint last) {
    [[unroll]] for (uint stage = 0; stage < STAGES; stage++) {
        stage_in(tensor, base, ld, last, stage * STAGE_TILES);
        [[unroll]] for (uint e = 0; e < STAGE_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * STAGE_TILES + e < WIDE_TILES) {
                    coopMatLoad(own.at[r * WIDE_TILES + stage * STAGE_TILES + e], tile,
                                stage_at(gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M, e), STAGE_LD, ROW_MAJOR);
                }
            }
        }
    }
}

void store_gradient(const Gradient g, const float scale, const bool TO_DV, const uint base, const uint ld, const uint last) {
    barrier();  // the last tile is read
    [[unroll]] for (uint stage = 0; stage < STAGES; stage++) {
        [[unroll]] for (uint e = 0; e < STAGE_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * STAGE_TILES + e < WIDE_TILES) {
                    coopMatStore(to_left(g.at[r * WIDE_TILES + stage * STAGE_TILES + e] * scale, false), tile,
                                 stage_at(gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M, e), STAGE_LD, ROW_MAJOR);
                }
            }
        }
        stage_out(TO_DV, base, ld, last, stage * STAGE_TILES);
    }
}

// product adds own * rows^T, where the MAT_N rows start at tile row `row`.
void product(inout Weights S, const Owned own, const uint row) {
    [[unroll]] for (uint d = 0; d < WIDE_TILES; d++) {
        fence(d);
        MatB right;  // a row-major tile read by columns
        coopMatLoad(right, tile, row * LD + d * (MAT_N / 8), LD, COLUMN_MAJOR);
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            S.at[r] = coopMatMulAdd(own.at[r * WIDE_TILES + d], right, S.at[r]);
        }
    }
}

// accumulate adds weights * rows, where the MAT_N rows start at tile row `row`.
void accumulate(inout Gradient g, const Left weights, const uint row) {
    [[unroll]] for (uint d = 0; d < WIDE_TILES; d++) {
        fence(d);
        MatB right;
        coopMatLoad(right, tile, row * LD + d * (MAT_N / 8), LD, ROW_MAJOR);
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            g.at[r * WIDE_TILES + d] = coopMatMulAdd(weights.at[r], right, g.at[r * WIDE_TILES + d]);
        }
    }
}

// lib/tile_bwd_f32x2.glsl has more arguments, the exponents of tiles and of rows, which it shares
// before.
#define SHARE_AMAX(first, second)
#define put(i, first, second, exponents) put(i, first, second)
#define set_left(left, r, x, amax) left.at[r] = to_left(x, true)
#define product(S, own, row, exponent) product(S, own, row)
#define accumulate(g, weights, row, exponent) accumulate(g, weights, row)
