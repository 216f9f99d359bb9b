// tile_shape: the sizes of tiles of keys in shared memory, and the division of copies among
// invocations.
//
// A workgroup owns BLOCK_M rows of one head: NUM_SUBGROUPS subgroups of ROW_TILES * MAT_M rows
// each. A tile is BLOCK_N rows of K or of V in 16-bit elements, LD uvec4 apart.
//
// The includer declares the specialization constants named here.

const uint SUBGROUP_ROWS = ROW_TILES * MAT_M;
const uint BLOCK_M = NUM_SUBGROUPS * SUBGROUP_ROWS;
const uint COL_TILES = BLOCK_N / MAT_N;
const uint DIM_TILES = (HEAD_DIM + MAT_N - 1) / MAT_N;
#ifdef FEATURES
const uint VALUE_TILES = (VALUE_DIM + MAT_N - 1) / MAT_N;
const uint WIDE_TILES = DIM_TILES > VALUE_TILES ? DIM_TILES : VALUE_TILES;  // rows of K and V are as wide as the wider
#else
#define VALUE_TILES DIM_TILES
#define WIDE_TILES DIM_TILES
#endif
const uint ROW8 = WIDE_TILES * (MAT_N / 8);  // uvec4 of one row; columns past head_dim are zero
const uint LD = ROW8 + 1;                   // one more, so that rows start in different banks
const uint TILE8 = BLOCK_N * ROW8;          // uvec4 of one tile
const uint COPIES = (TILE8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

#include "copies.glsl"
#include "fence.glsl"

uint copy_row(const uint i) { return row_of_copy(i, ROW8); }
uint copy_col(const uint i) { return col_of_copy(i, ROW8); }

// copies reports whether copy number i of this invocation is in the tile.
bool copies(const uint i) { return is_copy(i, TILE8); }

// keep_if returns x, or zeros: by selects, as in lib/f32x2.glsl.
uvec4 keep_if(const bool kept, const uvec4 x) { return mix(uvec4(0), x, bvec4(kept)); }

// copies_dim reports whether column `col`, in uvec4, is in Q and K; copies_value
// whether it is in V and O.
#ifdef FEATURES
bool copies_dim(const uint col) { return HEAD_DIM == ROW8 * 8 || col * 8 < HEAD_DIM; }
bool copies_value(const uint col) { return VALUE_DIM == ROW8 * 8 || col * 8 < VALUE_DIM; }
#else
bool copies_dim(const uint col) { return HEAD_DIM % MAT_N == 0 || col * 8 < HEAD_DIM; }

#define copies_value copies_dim
#endif
