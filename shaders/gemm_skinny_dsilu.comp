// gemm_skinny_dsilu: the gradients behind gemm_skinny, from the products that it kept.
//
//     dpre = (dY * transpose(W)) o silu'(pre)       batch by batch
//     dW   = transpose(silu(pre)) * dY
//
//     pre    (m, n)  ELEM, last axis contiguous; at A of lib/gemm_params.glsl
//     W      (n, COLUMNS)  ELEM, likewise; at R
//     dY     (m, COLUMNS)  ELEM, likewise; at X
//     C      (m, n)  ELEM: dpre, and zeros up to a multiple of 8 columns; offset and strides
//            are such multiples
//     S      (blocks of rows, batch, n, s_stride) f32: dW of the rows of a block;
//            gemm_combine adds them
//
// An invocation has eight columns, 16 bytes, of every ROW_LANES-th row of a block, and their
// rows of W in registers.
//
// Dispatch: (x, y, batch) with x * y >= tiles.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint BLOCK_M = 256;         // a multiple of ROW_LANES * AHEAD
layout(constant_id = 2) const uint BLOCK_N = 128;         // a multiple of 8
layout(constant_id = 3) const bool A_ALIGNED = true;      // offset and strides of pre are multiples of 8
layout(constant_id = 4) const uint COLUMNS = 3;           // of W and dY
layout(local_size_x_id = 0) in;

const uint COLUMN_LANES = BLOCK_N / 8;
const uint ROW_LANES = WORKGROUP_SIZE / COLUMN_LANES;
const uint AHEAD = 4;     // rows of an invocation whose loads are on their way at once
const uint QUADS = 2;     // of the eight columns

#define EPILOGUE_ID 5
#include "lib/element.glsl"
#include "lib/pack2.glsl"
#include "lib/gemm_params.glsl"

layout(binding = 0, scalar) readonly buffer A { uvec4 a8[]; };
layout(binding = 1, scalar) writeonly buffer C { uvec4 c8[]; };
layout(binding = 2, scalar) readonly buffer R { uint16_t r16[]; };
layout(binding = 3, scalar) readonly buffer X { uint16_t x16[]; };
layout(binding = 4, scalar) writeonly buffer S { float s1[]; };

#include "lib/gemm_skinny_bwd.glsl"
#include "lib/load8_shift.glsl"

DEFINE_LINE8(load_shifted, a8)

// load_pre returns columns col to col + 7 of the line of pre that begins at an element, those
// from n on as 0, as in memory they may be a NaN: mask has the bits of the others.
uvec4 load_pre(const uint line, const uint col, const uvec4 mask) {
    if (A_ALIGNED) {
        return a8[(line + col) / 8] & mask;
    }
    return load_shifted(line, col, p.n);
}

// add_rows writes dpre of the rows of this invocation, and adds them to dW.
void add_rows(const uint batch, const uint block_row, const uint block_col, const uint row_lane, const uint col) {
    const uvec4 mask = keep8(uvec4(~0u), int(p.n - col));
    [[unroll]] for (uint quad = 0; quad < QUADS; quad++) {
        load_quad(quad, (col - block_col) / 4 + quad);
    }
    const uint rows = min(p.m - block_row, BLOCK_M);
    [[dont_unroll]] for (uint first = row_lane; first < rows; first += ROW_LANES * AHEAD) {
        uvec4 words[AHEAD];  // pre, and in its place dpre: a load does not move over a store
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            const uint row = first + i * ROW_LANES;
            words[i] = uvec4(0);
            if (row < rows) {
                words[i] = load_pre(ROW_AT(a, batch, block_row + row), col, mask);
            }
        }
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            const uint row = first + i * ROW_LANES;
            const vec4 low = gradient(widen(words[i].xy), row, 0);
            const vec4 high = gradient(widen(words[i].zw), row, 1);
            words[i] = uvec4(pack2(low.x, low.y), pack2(low.z, low.w), pack2(high.x, high.y), pack2(high.z, high.w));
        }
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            const uint row = first + i * ROW_LANES;
            if (row < rows) {
                c8[(ROW_AT(c, batch, block_row + row) + col) / 8] = words[i];
            }
        }
    }
}

void main() {
    const uint id = WORKGROUP_ID;
    if (id >= p.tiles) {
        return;
    }
    const uint blocks_n = (p.n + BLOCK_N - 1) / BLOCK_N;
    const uint batch = gl_WorkGroupID.z;
    const uint block_row = id / blocks_n * BLOCK_M;
    const uint block_col = id % blocks_n * BLOCK_N;
    const uint row_lane = gl_LocalInvocationIndex / COLUMN_LANES;
    const uint col = block_col + gl_LocalInvocationIndex % COLUMN_LANES * 8;
    load_tiles(batch, block_row, block_col);
    barrier();  // they are written before they are read
    if (col < p.n) {
        add_rows(batch, block_row, block_col, row_lane, col);
    }
    [[dont_unroll]] for (uint lane = 0; lane < ROW_LANES; lane++) {
        barrier();  // w_tile is read by add_rows, or written by the lane before
        if (row_lane == lane) {
            [[unroll]] for (uint quad = 0; quad < QUADS; quad++) {
                put_quad(quad, (col - block_col) / 4 + quad, lane == 0);
            }
        }
    }
    barrier();  // w_tile is written
    store_tile(batch, block_row, block_col);
}
