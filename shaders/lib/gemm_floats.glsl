// gemm_floats: the common part of the kernels that split float32 operands of a GEMM into
// float16 parts: gemm_amax finds the largest magnitudes of rows, gemm_f32x2 scales and splits.
//
// A source is op(A), or op(B) transposed: rows of k elements, with any step from row to
// row and from element to element. Workgroups take tiles of ROWS rows and a part of k, first
// the tiles of A. Both kernels write to the same memory:
//
//     amax   (batch, chunks, rows)  bits of the largest magnitude in `chunk` elements of a row
//     panels, lib/gemm_panels.glsl
//
// Dispatch: (x, y) with x * y >= groups.

struct Source {
    uint rows;
    uint offset;    // elements, like the three that follow
    uint stride_b;
    uint row_step;
    uint k_step;
    uint amax;    // where its amax begin
    uint panels;  // and its panels, in uvec4
};

layout(push_constant, scalar) uniform Params {
    uint k;
    uint chunk;     // elements of a row with one top, a multiple of 32
    uint chunks;    // of a row
    uint k_tiles;   // of a row: k / DEPTH, rounded up
    uint tiles_k;   // tiles of a row
    uint a_groups;  // workgroups that have A
    uint groups;    // all of them
    Source a;
    Source b;
} p;

layout(binding = 0, scalar) readonly buffer A { float a1[]; };
layout(binding = 0, scalar) readonly buffer A4 { vec4 a4[]; };
layout(binding = 1, scalar) readonly buffer B { float b1[]; };
layout(binding = 1, scalar) readonly buffer B4 { vec4 b4[]; };

const uint ROWS = 32;  // of a tile

// The tile of a workgroup; exists is false past the last tile.
struct Tile {
    bool is_a;
    Source source;
    uint batch;
    uint row;     // first of the tile
    uint tile_k;  // number of the tile along k
    bool exists;
};

Tile this_tile() {
    const uint id = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    Tile t;
    t.is_a = id < p.a_groups;
    if (t.is_a) {
        t.source = p.a;
    } else {
        t.source = p.b;
    }
    const uint tile = t.is_a ? id : id - p.a_groups;
    const uint row_tiles = (t.source.rows + ROWS - 1) / ROWS;
    t.tile_k = tile % p.tiles_k;
    t.row = tile / p.tiles_k % row_tiles * ROWS;
    t.batch = tile / p.tiles_k / row_tiles;
    t.exists = id < p.groups;
    return t;
}

// element_of returns the index of element k of a row; a row past the last counts as the last.
uint element_of(const Tile t, const uint row, const uint k) {
    const Source s = t.source;
    return s.offset + t.batch * s.stride_b + min(row, s.rows - 1) * s.row_step + k * s.k_step;
}

float load_float(const Tile t, const uint at) { return t.is_a ? a1[at] : b1[at]; }

// amax_of returns the index of the top of a chunk of a row.
uint amax_of(const Tile t, const uint row, const uint chunk) {
    return t.source.amax + (t.batch * p.chunks + chunk) * t.source.rows + row;
}
