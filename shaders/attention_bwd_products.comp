// attention_bwd_products: the gradient of V, or of K, from the weights that
// attention_bwd_dq_matrix.comp has stored.
//
//     dX = scale * W^T * Y     summed over the rows of all heads that read the key head
//
// If these heads are not all stored at once, it adds the present ones to the sums of earlier calls.
//
//     stored  (heads, pages, 2, BLOCK_M, BLOCK_M)          ELEM, W for either value of `which`, see lib/pages.glsl
//     y       (batch, num_heads, seq_q, head_dim)          ELEM, any strides, last axis contiguous: dO, or Q
//     dx      (batch, num_kv_heads, seq_kv, head_dim)      ELEM, likewise: dV, or dK
//
// A workgroup computes the rows of a block of BLOCK_M keys, a grid of SUBGROUPS_K x SUBGROUPS_D
// subgroups with TILES_K x TILES_D accumulators each. K-tiles of BLOCK_K rows of W and Y go from
// memory to registers to shared memory, as in lib/gemm_matrix.glsl:
//
//     load k-tile i+1; products of k-tile i; barrier; store k-tile i+1; barrier
//
// With PACKED the products are dX^T = scale * Y^T * W: W in memory is loaded as right matrices.
//
// Under a causal mask a workgroup begins with the first block of rows that sees a key of its block.
//
// With FEATURES a window may begin, too, and sequences may be packed; of other features P and dX are all that
// there is to know.
//
// Dispatch: (n, ceil(seq_kv / BLOCK_M), ceil(heads / n)), BLOCK_M = SUBGROUPS_K * TILES_K * MAT_M.
#version 460
#extension GL_EXT_control_flow_attributes : require
#include "lib/matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint SUBGROUPS_K = 2;  // along keys
layout(constant_id = 2) const uint SUBGROUPS_D = 2;  // along head_dim
layout(constant_id = 3) const uint MAT_M = 16;
layout(constant_id = 4) const uint MAT_N = 16;
layout(constant_id = 5) const uint TILES_K = 4;  // accumulators of a subgroup
layout(constant_id = 6) const uint TILES_D = 4;
layout(constant_id = 7) const uint BLOCK_K = 32;  // divides BLOCK_M
layout(constant_id = 8) const uint HEAD_DIM = 128;
layout(constant_id = 9) const bool CAUSAL = false;
layout(constant_id = 10) const bool ALIGNED = true;  // offsets and strides are multiples of 8
layout(constant_id = 11) const uint LOAD_AHEAD = 0;  // operands are loaded at most this many matrices of a k-tile ahead, 0: any
layout(local_size_x_id = 0) in;

#define FEATURES_ID 12
#define FEATURES_BINDING 4
#include "lib/element.glsl"
#include "lib/params.glsl"

BEGIN_PARAMS
    uint seq_q;
    uint seq_kv;
    uint heads_per_kv;
    uint num_kv_heads;
    int causal_shift;  // row i sees keys j <= i + causal_shift
    uint first_head;   // of batch*num_kv_heads, the first of the dispatch
    uint heads;        // of keys, of the dispatch
    uint first_member; // of heads_per_kv that are stored
    uint members;
    uint pages_offset; // uvec4, lib/pages.glsl
    uint sums_offset;  // float32
    uint which;        // 0: W is P, 1: dX
    float scale;
    STRIDES(y)  // all offsets and strides are in elements
    STRIDES(dx)
#ifdef FEATURES
    uint head_pages;   // that a head may have
    uint block_pages;  // and a block of rows, where a window begins
#endif
END_PARAMS

#ifdef FEATURES
void skip_rows(const uint n) { p.y_offset += n * p.y_stride_s; }
void skip_keys(const uint n) { p.dx_offset += n * p.dx_stride_s; }
#endif

layout(binding = 0, scalar) readonly buffer Stored { uvec4 stored8[]; };
layout(binding = 3, scalar) buffer Sums { float sums[]; };

#ifdef FEATURES
#define WITHOUT_SCORES
#include "lib/sequence.glsl"
#endif
#include "lib/matrix_types.glsl"
#include "lib/load8.glsl"
READ8(1, Y, y)
WRITE8(2, DX, dx)

#ifdef PACKED
#define KEY_SIDE MAT_N  // keys of a matrix of sums: its columns, which are W's
#define DIM_SIDE MAT_M
#else
#define KEY_SIDE MAT_M
#define DIM_SIDE MAT_N
#endif
const uint SUBGROUP_KEYS = TILES_K * KEY_SIDE;
const uint SUBGROUP_DIMS = TILES_D * DIM_SIDE;
const uint BLOCK_M = SUBGROUPS_K * SUBGROUP_KEYS;
const uint BLOCK_D = SUBGROUPS_D * SUBGROUP_DIMS;
const uint SUBGROUP_SIZE = WORKGROUP_SIZE / (SUBGROUPS_K * SUBGROUPS_D);
#include "lib/fence.glsl"
#include "lib/copies.glsl"
#include "lib/mask.glsl"
#include "lib/pages.glsl"
#include "lib/pack2.glsl"
#ifdef PACKED
#include "lib/packed.glsl"
#endif
#include "lib/products_k_tile.glsl"

void main() {
    const uint number = gl_WorkGroupID.z * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (number >= p.heads) {
        return;
    }
    const uint batch = (p.first_head + number) / p.num_kv_heads;
    const uint kv_head = (p.first_head + number) % p.num_kv_heads;
    const uint page = gl_WorkGroupID.y;
#ifdef FEATURES
    enter_sequence(batch);
    if (page * BLOCK_M >= p.seq_kv) {
        return;
    }
    const uint END_ROW = min(end_blocks(page) * BLOCK_M, p.seq_q);
#else
#define END_ROW p.seq_q
#endif
    const uint subgroup_key = gl_SubgroupID / SUBGROUPS_D * SUBGROUP_KEYS;
    const uint subgroup_dim = gl_SubgroupID % SUBGROUPS_D * SUBGROUP_DIMS;

    MatC sum[TILES_K * TILES_D];  // (SUBGROUP_KEYS, SUBGROUP_DIMS), with PACKED transposed
    // Sums of earlier heads lie in memory in the order of the subgroups' accumulators.
    const uint sums_at = p.sums_offset + ((number * gl_NumWorkGroups.y + page) * SUBGROUPS_K * SUBGROUPS_D + gl_SubgroupID) * (TILES_K * TILES_D * MAT_M * MAT_N);
    [[unroll]] for (uint i = 0; i < TILES_K * TILES_D; i++) {
        sum[i] = MatC(0.0);
    }
    if (p.first_member > 0) {
        [[unroll]] for (uint i = 0; i < TILES_K * TILES_D; i++) {
            coopMatLoad(sum[i], sums, sums_at + i * MAT_M * MAT_N, MAT_N, ROW_MAJOR);
        }
    }

    const uint first_block = block_seeing(page);
    const uint first_row = first_block * BLOCK_M;
    const uint head_size = head_pages() * 2 * PAGE8;
#ifdef FEATURES
    const uint first_page = page_at(first_block, page);
#else
#define first_page pages_before(first_block) + page
#endif
    uint head_at = p.pages_offset + (number * p.members * head_pages() + first_page) * 2 * PAGE8 + p.which * PAGE8;
    uint y_at = HEAD_AT(y, batch, kv_head * p.heads_per_kv + p.first_member);
    uint w_at = head_at;
    uint row = first_row;
#ifdef PACKED
    const uint packed_at = subgroup_key / 32 * 64 + packed_place();
#endif
    if (first_row < END_ROW) {
        {
            LOAD_K_TILE
            STORE_K_TILE
        }
        barrier();  // tile written before it is read
        const uint k_tiles = (END_ROW - first_row + BLOCK_K - 1) / BLOCK_K * p.members;
        [[dont_unroll]] for (uint k_tile = 1; k_tile < k_tiles; k_tile++) {
            row += BLOCK_K;
            w_at += W_SIZE;
            if (row >= END_ROW) {  // the next head
                row = first_row;
                head_at += head_size;
                y_at += p.y_stride_h;
                w_at = head_at;
            } else if (row % BLOCK_M == 0) {  // the next block of rows, past the other pages of this one
#ifdef FEATURES
                w_at = head_at + (page_at(row / BLOCK_M, page) - first_page) * 2 * PAGE8;
#else
                w_at += (pages_of(row / BLOCK_M - 1) * 2 - 1) * PAGE8;
#endif
            }
            LOAD_K_TILE
            PRODUCTS
            barrier();  // the k-tile is read
            STORE_K_TILE
            barrier();  // tile written before it is read
        }
        PRODUCTS
    }

    if (p.first_member + p.members < p.heads_per_kv) {
        [[unroll]] for (uint i = 0; i < TILES_K * TILES_D; i++) {
            coopMatStore(sum[i], sums, sums_at + i * MAT_M * MAT_N, MAT_N, ROW_MAJOR);
        }
        return;
    }

    // The first barrier comes after the k-tile is read; of the other two one after the strip before
    // is read, one after it is written.
    const uint base = HEAD_AT(dx, batch, kv_head);
    const uint strip = gl_SubgroupID * KEY_SIDE * SUMS_LD;
    barrier();
    [[unroll]] for (uint i = 0; i < TILES_K; i++) {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        [[unroll]] for (uint j = 0; j < TILES_D; j++) {
            coopMatStore(sum[i * TILES_D + j], tile, strip + j * (DIM_SIDE / 4), SUMS_LD, SUM_LAYOUT);
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        const uint LINE8 = SUBGROUP_DIMS / 8;
        for (uint at = gl_SubgroupInvocationID; at < KEY_SIDE * LINE8; at += SUBGROUP_SIZE) {
            const uint key = page * BLOCK_M + subgroup_key + i * KEY_SIDE + at / LINE8;
            const uint col = subgroup_dim + at % LINE8 * 8;
            if (key < p.seq_kv && col < HEAD_DIM) {
                const uint from = strip + at / LINE8 * SUMS_LD + at % LINE8 * 2;
                const vec4 low = uintBitsToFloat(tile[from]) * p.scale;
                const vec4 high = uintBitsToFloat(tile[from + 1]) * p.scale;
                put_dx(base + key * p.dx_stride_s + col, uvec4(pack2(low.x, low.y), pack2(low.z, low.w), pack2(high.x, high.y), pack2(high.z, high.w)));
            }
        }
    }
}
