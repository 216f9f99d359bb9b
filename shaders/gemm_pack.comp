// gemm_pack: copies operands of gemm_pair, or op(B) of gemm_coopmat, to the order in which
// invocations hold their elements (lib/packed.glsl): x as left matrices, w1 and w2 as right
// matrices.
//
//     out[source.at + number(matrix), invocation] = the elements of the matrix
//
//     x   (rows, cols)  ELEM, any stride, last axis contiguous
//     w1  (rows, cols)  ELEM, likewise
//     w2  (rows, cols)  ELEM, likewise; with BY_K the transposes become right matrices
//     out               matrices in the order below, 0 outside a source
//
// The matrices of a source lie along k and across it. k is the columns of x and the rows of
// w1 and w2, with BY_K their columns. Panels are `width` matrices across; groups are `depth`
// matrices along. For width = 2, two panels and depth = 3 the numbers are, with k to the right,
//
//     across 0    0  2  4   12 14 16
//     across 1    1  3  5   13 15 17
//     across 2    6  8 10   18 20 22
//     across 3    7  9 11   19 21 23
//
// With DEAL_LANES columns of w1 and w2 are dealt out to the matrices of a panel (lib/deal.glsl).
//
// A workgroup has neighbouring matrices across k, which one division finds.
//
// Dispatch: (x, y, SOURCES from FIRST on) with x * y * width >= matrices of each source.
#version 460
#include "lib/matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint SUBGROUPS = 4;
layout(constant_id = 2) const uint MAT_M = 16;  // the same as MAT_N
layout(constant_id = 3) const uint MAT_N = 16;
layout(constant_id = 4) const uint FIRST = 0;  // source: x, w1 or w2
layout(constant_id = 5) const bool BY_K = false;
layout(constant_id = 6) const uint SOURCES = 3;
layout(constant_id = 7) const uint DEAL_RUN = 1;
layout(constant_id = 8) const uint DEAL_LANES = 0;  // 0: columns lie as they are
layout(local_size_x_id = 0) in;

struct Source {
    uint offset;  // elements, like the next
    uint stride;
    uint rows;
    uint cols;
    uint width;  // matrices, like the next two
    uint panels;
    uint depth;
    uint count;
    uint at;  // uvec4 of out where they begin
};

layout(push_constant, scalar) uniform Params {
    Source x;
    Source w1;
    Source w2;
} p;

layout(binding = 0, scalar) readonly buffer X { uvec4 x8[]; };
layout(binding = 1, scalar) readonly buffer W1 { uvec4 w1_8[]; };
layout(binding = 2, scalar) readonly buffer W2 { uvec4 w2_8[]; };
layout(binding = 3, scalar) writeonly buffer Out { uvec4 out8[]; };

#include "lib/element.glsl"
#include "lib/matrix_types.glsl"
#include "lib/packed.glsl"
#include "lib/load8_shift.glsl"
#include "lib/deal.glsl"

DEFINE_LINE8(load_x, x8)
DEFINE_LINE8(load_w1, w1_8)
DEFINE_LINE8(load_w2, w2_8)

const uint SUBGROUP_SIZE = WORKGROUP_SIZE / SUBGROUPS;
const uint LINE8 = MAT_N / 8;
const uint LD = LINE8 + 1;  // one more, so that lines start in different banks

shared uvec4 tile[SUBGROUPS * MAT_N * LD];

// load_line returns elements col to col + 7 of a line of a source.
uvec4 load_line(const Source s, const uint source, const uint line, const uint col) {
    if (source == 0) {
        return load_x(line, col, s.cols);
    }
    return source == 1 ? load_w1(line, col, s.cols) : load_w2(line, col, s.cols);
}

// load_dealt is load for columns that are dealt out.
uvec4 load_dealt(const Source s, const uint source, const uint along, const uint across, const uint lane) {
    const uint j = across % s.width;
    const uint first = (across - j) * MAT_N;  // of the panel
    if (BY_K) {
        const uint row = first + dealt(s.width, j, lane / LINE8);
        const uint col = along * MAT_N + lane % LINE8 * 8;
        return row < s.rows && col < s.cols ? load_line(s, source, s.offset + row * s.stride, col) : uvec4(0);
    }
    const uint row = along * MAT_N + lane / LINE8;
    uvec4 words = uvec4(0);
    [[unroll]] for (uint e = 0; e < 8; e += DEAL_PAIR) {  // elements that are neighbours
        const uint col = first + dealt(s.width, j, lane % LINE8 * 8 + e);
        if (row < s.rows && col < s.cols) {
            const uvec4 eight = load_line(s, source, s.offset + row * s.stride, col & ~7u);
            const uint word = eight[col % 8 / 2];
            words[e / 2] |= DEAL_PAIR == 2 ? word : (word >> col % 2 * 16 & 0xffffu) << e % 2 * 16;
        }
    }
    return words;
}

// load returns eight elements of line `lane / LINE8` of the matrix at (along, across).
uvec4 load(const Source s, const uint source, const uint along, const uint across, const uint lane) {
    if (DEAL_LANES > 0 && source != 0) {
        return load_dealt(s, source, along, across, lane);
    }
    const bool by_k = source == 0 || BY_K;
    const uint row = (by_k ? across : along) * MAT_N + lane / LINE8;
    const uint col = (by_k ? along : across) * MAT_N + lane % LINE8 * 8;
    if (row >= s.rows || col >= s.cols) {
        return uvec4(0);
    }
    return load_line(s, source, s.offset + row * s.stride, col);
}

// copy copies matrix number n, which is at (along, across).
void copy(const Source s, const uint source, const uint n, const uint along, const uint across) {
    const uint lane = gl_SubgroupInvocationID;
    const uint base = gl_SubgroupID * MAT_N * LD;
    tile[base + lane / LINE8 * LD + lane % LINE8] = load(s, source, along, across, lane);
    subgroupMemoryBarrierShared();
    subgroupBarrier();  // tile written before it is read
    uvec4 words;
    if (source == 0) {
        MatA m;
        coopMatLoad(m, tile, base, LD, ROW_MAJOR);
        words = left_words(m);
    } else {
        MatB m;
        if (BY_K) {
            coopMatLoad(m, tile, base, LD, COLUMN_MAJOR);
        } else {
            coopMatLoad(m, tile, base, LD, ROW_MAJOR);
        }
        words = right_words(m);
    }
    out8[s.at + n * SUBGROUP_SIZE + lane] = words;
}

void main() {
    const uint source = SOURCES == 1 ? FIRST : FIRST + gl_WorkGroupID.z;
    const Source s = source == 0 ? p.x : source == 1 ? p.w1 : p.w2;
    const uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (group * s.width >= s.count) {
        return;
    }
    const uint panel = group / s.depth;
    uint along = group - panel * s.depth;
    uint across = panel;
    if (panel >= s.panels) {
        along += panel / s.panels * s.depth;
        across = panel % s.panels;
    }
    for (uint i = gl_SubgroupID; i < s.width; i += SUBGROUPS) {
        copy(s, source, group * s.width + i, along, across * s.width + i);
        subgroupBarrier();  // tile read before it is written again
    }
}
