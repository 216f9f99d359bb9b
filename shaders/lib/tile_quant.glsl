// tile_quant: what lib/tile.glsl has else where Q and K are integers of 8 bits, as
// attention_quantize.comp writes them for matrices (QUANT).
//
// Offsets and strides of q and k are in bytes. Shared memory holds BLOCK_N rows of K, of K_ROW uvec4,
// where a matrix takes K_CELL, and from V_AT on the same keys of V. Q goes straight to its matrices.

layout(binding = 0, scalar) readonly buffer Q { uvec4 q16[]; };
layout(binding = 1, scalar) readonly buffer K { uvec4 k16[]; };
layout(binding = 5, scalar) readonly buffer QRows { vec2 q_rows[]; };  // scale; base-2 logits of the mean key
layout(binding = 6, scalar) readonly buffer KScales { float k_scales[]; };

#define KEY_STEP 64  // where blocks begin, with a window too: the keys that share a scale

const uint K_CELL = (MAT_K + 15) / 16;
const uint K_TILES = (HEAD_DIM + MAT_K - 1) / MAT_K;
const uint K_ROW = K_TILES * K_CELL;
const uint ROW_BYTES = K_ROW * 16;
const uint K_LD = K_ROW + 1;  // as LD
const uint K_TILE = BLOCK_N * K_ROW;
const uint K_COPIES = (K_TILE + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;  // at most COPIES
const uint V_AT = BLOCK_N * K_LD;
const uint TILE_SIZE = V_AT + BLOCK_N * LD;
shared uvec4 tile[TILE_SIZE];

uvec4 fetch_k(const uint base, const uint i, const uint last) {
    const uint row = min(row_of_copy(i, K_ROW), last);
    return i < K_COPIES ? k16[(base + row * p.k_stride_s) / 16 + col_of_copy(i, K_ROW)] : uvec4(0);
}

void put_kv(const uint i, const uvec4 k, const uvec4 v) {
    if (i < K_COPIES && is_copy(i, K_TILE)) {
        tile[row_of_copy(i, K_ROW) * K_LD + col_of_copy(i, K_ROW)] = k;
    }
    if (copies(i)) {
        tile[V_AT + copy_row(i) * LD + copy_col(i)] = v;
    }
}
