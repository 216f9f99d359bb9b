// attention_bwd_products: the gradient of V, or of K, from weights that attention_bwd_dq_matrix.comp
// has stored.
//
//     dX = scale * W^T * Y     summed over the rows of all heads that read the key head
//
//     stored  (heads, pages, 2, BLOCK_M, BLOCK_M)          ELEM, W for either value of `which`, see lib/pages.glsl
//     y       (batch, num_heads, seq_q, head_dim)          ELEM, any strides, last axis contiguous: dO, or Q
//     dx      (batch, num_kv_heads, seq_kv, head_dim)      ELEM, likewise: dV, or dK
//
// A workgroup computes the rows of a block of BLOCK_M keys, a grid of SUBGROUPS_M x SUBGROUPS_N
// subgroups with TILES_M x TILES_N accumulators each. Slabs of SLAB rows of W and Y go from
// memory to registers to shared memory, as in lib/gemm_matrix.glsl:
//
//     load slab i+1; products of slab i; barrier; store slab i+1; barrier
//
// Under a causal mask it begins with the first block of rows that sees a key of the block.
//
// Dispatch: (n, ceil(seq_kv / BLOCK_M), ceil(heads / n)), BLOCK_M = SUBGROUPS_M * TILES_M * MAT_M.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_bfloat16 : enable
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_cooperative_matrix : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint SUBGROUPS_M = 2;
layout(constant_id = 2) const uint SUBGROUPS_N = 2;
layout(constant_id = 3) const uint MAT_M = 16;
layout(constant_id = 4) const uint MAT_N = 16;
layout(constant_id = 5) const uint TILES_M = 4;  // accumulators of a subgroup
layout(constant_id = 6) const uint TILES_N = 4;
layout(constant_id = 7) const uint SLAB = 32;    // divides BLOCK_M
layout(constant_id = 8) const uint HEAD_DIM = 128;
layout(constant_id = 9) const bool CAUSAL = false;
layout(constant_id = 10) const bool ALIGNED = true;  // offsets and strides are multiples of 8
layout(constant_id = 11) const uint FENCE = 0;       // columns of matrices of a slab between fences, 0: none
layout(local_size_x_id = 0) in;

#include "lib/element.glsl"

layout(push_constant, scalar) uniform Params {
    uint seq_q;
    uint seq_kv;
    uint heads_per_kv;
    uint num_kv_heads;
    int causal_shift;  // row i sees keys j <= i + causal_shift
    uint first_head;   // of batch*num_kv_heads, the first of the dispatch
    uint heads;        // of keys, of the dispatch
    uint pages_offset; // uvec4, lib/pages.glsl
    uint which;        // 0: W is P, 1: dX
    float scale;
    uint y_offset;     // all offsets and strides are in elements
    uint y_stride_b;
    uint y_stride_h;
    uint y_stride_s;
    uint dx_offset;
    uint dx_stride_b;
    uint dx_stride_h;
    uint dx_stride_s;
} p;

layout(binding = 0, scalar) readonly buffer Stored { uvec4 stored8[]; };
layout(binding = 1, scalar) readonly buffer Y { uvec4 y8[]; };
layout(binding = 1, scalar) readonly buffer Y16 { uint16_t y16[]; };
layout(binding = 2, scalar) writeonly buffer DX { uvec4 dx8[]; };
layout(binding = 2, scalar) writeonly buffer DX16 { uint16_t dx16[]; };

#include "lib/matrix_types.glsl"
#include "lib/load8.glsl"
DEFINE_LOAD8(load_y, y8, y16)
DEFINE_STORE8(put_dx, dx8, dx16)
#include "lib/gemm_grid.glsl"
#include "lib/fence.glsl"
#include "lib/copies.glsl"
#include "lib/mask.glsl"
#include "lib/pages.glsl"
#include "lib/pack2.glsl"

const uint W_LD = PAGE_LD + 1;      // one more, so that lines start in different banks
const uint Y_LINE8 = BLOCK_N / 8;   // columns past head_dim are zero
const uint Y_LD = Y_LINE8 + 1;
const uint W_SIZE = SLAB * PAGE_LD;
const uint Y_SIZE = SLAB * Y_LINE8;
const uint W_COPIES = (W_SIZE + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint Y_COPIES = (Y_SIZE + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint Y_AT = SLAB * W_LD;  // where Y begins
const uint SLABS_SIZE = Y_AT + SLAB * Y_LD;
// Sums leave by subgroups, one row of matrices at a time, as float32.
const uint SUMS_LD = SUBGROUP_N / 4 + 1;
const uint SUMS_SIZE = SUBGROUPS_M * SUBGROUPS_N * MAT_M * SUMS_LD;

shared uvec4 tile[SLABS_SIZE > SUMS_SIZE ? SLABS_SIZE : SUMS_SIZE];

// Macros, as arrays sized by specialization constants cannot be arguments. LOAD_SLAB declares what a slab
// waits in, on its way from memory, where W of it begins at uvec4 w_at, and Y at row `row` of the head at y_at.
#define LOAD_SLAB                                                                                                                      \
    uvec4 w_next[W_COPIES];                                                                                                            \
    uvec4 y_next[Y_COPIES];                                                                                                            \
    [[unroll]] for (uint i = 0; i < W_COPIES; i++) {                                                                                   \
        w_next[i] = stored8[w_at + (is_copy(i, W_SIZE) ? i * WORKGROUP_SIZE + gl_LocalInvocationIndex : 0)];                           \
    }                                                                                                                                  \
    [[unroll]] for (uint i = 0; i < Y_COPIES; i++) {                                                                                   \
        const uint col = col_of_copy(i, Y_LINE8) * 8;                                                                                  \
        y_next[i] = BLOCK_N == HEAD_DIM || col < HEAD_DIM                                                                              \
                        ? load_y(y_at + min(row + row_of_copy(i, Y_LINE8), p.seq_q - 1) * p.y_stride_s + col) : uvec4(0);              \
    }
#define STORE_SLAB                                                                                               \
    [[unroll]] for (uint i = 0; i < W_COPIES; i++) {                                                             \
        if (is_copy(i, W_SIZE)) {                                                                                \
            tile[row_of_copy(i, PAGE_LD) * W_LD + col_of_copy(i, PAGE_LD)] = w_next[i];                          \
        }                                                                                                        \
    }                                                                                                            \
    [[unroll]] for (uint i = 0; i < Y_COPIES; i++) {                                                             \
        if (is_copy(i, Y_SIZE)) {                                                                                \
            tile[Y_AT + row_of_copy(i, Y_LINE8) * Y_LD + col_of_copy(i, Y_LINE8)] = y_next[i];                   \
        }                                                                                                        \
    }
#define PRODUCTS                                                                                                                       \
    [[unroll]] for (uint d = 0; d < SLAB / MAT_N; d++) {                                                                               \
        fence(d);                                                                                                                      \
        MatA a[TILES_M];                                                                                                               \
        [[unroll]] for (uint i = 0; i < TILES_M; i++) {                                                                                \
            coopMatLoad(a[i], tile, d * MAT_N * W_LD + (subgroup_row + i * MAT_M) / 8, W_LD, gl_CooperativeMatrixLayoutColumnMajor);   \
        }                                                                                                                              \
        [[unroll]] for (uint j = 0; j < TILES_N; j++) {                                                                                \
            MatB b;                                                                                                                    \
            coopMatLoad(b, tile, Y_AT + d * MAT_N * Y_LD + (subgroup_col + j * MAT_N) / 8, Y_LD, gl_CooperativeMatrixLayoutRowMajor);  \
            [[unroll]] for (uint i = 0; i < TILES_M; i++) {                                                                            \
                sum[i * TILES_N + j] = coopMatMulAdd(a[i], b, sum[i * TILES_N + j]);                                                   \
            }                                                                                                                          \
        }                                                                                                                              \
    }

void main() {
    const uint number = gl_WorkGroupID.z * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (number >= p.heads) {
        return;
    }
    const uint batch = (p.first_head + number) / p.num_kv_heads;
    const uint kv_head = (p.first_head + number) % p.num_kv_heads;
    const uint page = gl_WorkGroupID.y;
    const uint subgroup_row = gl_SubgroupID / SUBGROUPS_N * SUBGROUP_M;
    const uint subgroup_col = gl_SubgroupID % SUBGROUPS_N * SUBGROUP_N;

    MatC sum[TILES_M * TILES_N];  // (SUBGROUP_M, SUBGROUP_N)
    [[unroll]] for (uint i = 0; i < TILES_M * TILES_N; i++) {
        sum[i] = MatC(0.0);
    }

    const uint first_block = block_seeing(page);
    const uint first_row = first_block * BLOCK_M;
    const uint head_size = head_pages() * 2 * PAGE8;
    uint head_at = p.pages_offset + (number * p.heads_per_kv * head_pages() + pages_before(first_block) + page) * 2 * PAGE8 + p.which * PAGE8;
    uint y_at = p.y_offset + batch * p.y_stride_b + kv_head * p.heads_per_kv * p.y_stride_h;
    uint w_at = head_at;
    uint row = first_row;
    if (first_row < p.seq_q) {
        {
            LOAD_SLAB
            STORE_SLAB
        }
        barrier();  // tile written before it is read
        const uint slabs = (p.seq_q - first_row + SLAB - 1) / SLAB * p.heads_per_kv;
        [[dont_unroll]] for (uint slab = 1; slab < slabs; slab++) {
            row += SLAB;
            w_at += W_SIZE;
            if (row >= p.seq_q) {  // the next head
                row = first_row;
                head_at += head_size;
                y_at += p.y_stride_h;
                w_at = head_at;
            } else if (row % BLOCK_M == 0) {  // the next block of rows, past the other pages of this one
                w_at += (pages_of(row / BLOCK_M - 1) * 2 - 1) * PAGE8;
            }
            LOAD_SLAB
            PRODUCTS
            barrier();  // the slab is read
            STORE_SLAB
            barrier();  // tile written before it is read
        }
        PRODUCTS
    }

    // The first barrier comes after the slab is read; of the other two one after the strip before
    // is read, one after it is written.
    const uint base = p.dx_offset + batch * p.dx_stride_b + kv_head * p.dx_stride_h;
    const uint strip = gl_SubgroupID * MAT_M * SUMS_LD;
    barrier();
    [[unroll]] for (uint i = 0; i < TILES_M; i++) {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        [[unroll]] for (uint j = 0; j < TILES_N; j++) {
            coopMatStore(sum[i * TILES_N + j], tile, strip + j * (MAT_N / 4), SUMS_LD, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        for (uint at = gl_SubgroupInvocationID; at < MAT_M * (SUBGROUP_N / 8); at += SUBGROUP_SIZE) {
            const uint line = at / (SUBGROUP_N / 8);
            const uint key = page * BLOCK_M + subgroup_row + i * MAT_M + line;
            const uint col = subgroup_col + at % (SUBGROUP_N / 8) * 8;
            if (key < p.seq_kv && col < HEAD_DIM) {
                const vec4 low = uintBitsToFloat(tile[strip + line * SUMS_LD + at % (SUBGROUP_N / 8) * 2]) * p.scale;
                const vec4 high = uintBitsToFloat(tile[strip + line * SUMS_LD + at % (SUBGROUP_N / 8) * 2 + 1]) * p.scale;
                put_dx(base + key * p.dx_stride_s + col, uvec4(pack2(low.x, low.y), pack2(low.z, low.w), pack2(high.x, high.y), pack2(high.z, high.w)));
            }
        }
    }
}
