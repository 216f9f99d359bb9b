// gemm_skinny_bwd: the gradients of a block from its pre,
//
//     dpre = (dY * transpose(W)) o silu'(pre)
//     dW   = transpose(silu(pre)) * dY, of the rows of the block
//
//     dY   (m, COLUMNS)  ELEM for each product of the batch; at X of lib/gemm_params.glsl
//     S    (blocks of rows, batch, n, s_stride) f32: dW; gemm_combine adds the blocks
//
// An invocation has QUADS times four neighbouring columns of the block, and some of its rows. Their
// rows of W and its sums of dW are in registers: a quad has a number, a constant in unrolled code.
//
// The includer declares the constants COLUMNS, BLOCK_M and QUADS, has dY as
// `uint16_t x16[]` and S as `float s1[]`, and what lib/gemm_w.glsl needs.
#extension GL_EXT_control_flow_attributes : require

#include "gemm_w.glsl"
#include "silu.glsl"

// The rows of dY of the block, in float32, with zeros beyond m.
shared float dy_tile[BLOCK_M * COLUMNS];

// W, and dW of its rows, of the columns of this invocation.
vec4 w_quads[QUADS * COLUMNS];
vec4 dw_quads[QUADS * COLUMNS];

// load_tiles fills w_tile and dy_tile, and clears dw_quads. A barrier comes before they are read.
void load_tiles(const uint batch, const uint row, const uint col) {
    load_w(batch, col);
    for (uint i = gl_LocalInvocationIndex; i < BLOCK_M * COLUMNS; i += WORKGROUP_SIZE) {
        const uint y = row + i / COLUMNS;
        float v = 0.0;
        if (y < p.m) {
            v = WIDEN(x16[ROW_AT(x, batch, y) + i % COLUMNS]);
        }
        dy_tile[i] = v;
    }
    [[unroll]] for (uint i = 0; i < QUADS * COLUMNS; i++) {
        dw_quads[i] = vec4(0.0);
    }
}

// load_quad loads the rows of W of a quad, columns 4 * x4 to 4 * x4 + 3 of the block.
void load_quad(const uint quad, const uint x4) {
    [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
        w_quads[quad * COLUMNS + o] = w_tile[o * BLOCK_N4 + x4];
    }
}

// gradient returns dpre of a quad of a row of the block, and adds the row to dW. v is pre, and
// 0 outside of the matrix.
vec4 gradient(const vec4 v, const uint row, const uint quad) {
    const vec4 h = silu(v);
    vec4 g = vec4(0.0);
    [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
        const float dy = dy_tile[row * COLUMNS + o];
        g += dy * w_quads[quad * COLUMNS + o];
        dw_quads[quad * COLUMNS + o] += dy * h;
    }
    return g * dsilu(v);
}

// put_quad puts dW of a quad in w_tile, in place of W; unless it is the first there, it is added.
void put_quad(const uint quad, const uint x4, const bool first) {
    [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
        const uint at = o * BLOCK_N4 + x4;
        w_tile[at] = first ? dw_quads[quad * COLUMNS + o] : w_tile[at] + dw_quads[quad * COLUMNS + o];
    }
}

// store_tile writes dW of the block from w_tile to S, after a barrier.
void store_tile(const uint batch, const uint row, const uint col) {
    const uint at = p.s_offset + (row / BLOCK_M * gl_NumWorkGroups.z + batch) * p.s_stride_b;
    for (uint i = gl_LocalInvocationIndex; i < BLOCK_N && col + i < p.n; i += WORKGROUP_SIZE) {
        [[unroll]] for (uint o = 0; o < COLUMNS; o++) {
            s1[at + (col + i) * p.s_stride + o] = w_tile[o * BLOCK_N4 + i / 4][i % 4];
        }
    }
}
