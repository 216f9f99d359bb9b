// float_tile: stages rows of a block in float32 in the memory of its tiles, on their way to
// device memory, with as many matrices of columns at a time as fit.
//
// The includer declares `shared uvec4 tile[TILE_SIZE]` and `const uint TILE_SIZE`, and
// includes lib/tile_shape.glsl.

const uint FLOAT_FITTING = TILE_SIZE / BLOCK_M / (MAT_N / 4);  // 0: the host does not ask for floats
const uint FLOAT_TILES = FLOAT_FITTING == 0 ? 1 : FLOAT_FITTING < VALUE_TILES ? FLOAT_FITTING : VALUE_TILES;
const uint FLOAT_STAGES = (VALUE_TILES + FLOAT_TILES - 1) / FLOAT_TILES;
const uint FLOAT_ROW4 = FLOAT_TILES * (MAT_N / 4);  // uvec4 of one staged row
const uint FLOAT_LD = (FLOAT_ROW4 + 1) * BLOCK_M <= TILE_SIZE ? FLOAT_ROW4 + 1 : FLOAT_ROW4;  // for the banks, where there is room

// float_at returns where row `row` of the block and matrix column d are staged.
uint float_at(const uint row, const uint d) { return row * FLOAT_LD + d * (MAT_N / 4); }
