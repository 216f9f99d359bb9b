// tile_stage: rows that the workgroup owns pass through the memory of its tiles, as many matrices of
// their columns at a time as fit.
//
// The includer includes lib/tile_shape.glsl and declares `shared uvec4 tile[]`, of 2 * BLOCK_N rows, with
// QUANT of TILE_SIZE uvec4.

#ifdef QUANT
#define STAGE_SIZE TILE_SIZE
#else
#define STAGE_SIZE 2 * BLOCK_N * LD
#endif

const uint FITTING_TILES = STAGE_SIZE / BLOCK_M / (MAT_N / 8);
const uint STAGE_TILES = FITTING_TILES < WIDE_TILES ? FITTING_TILES : WIDE_TILES;
const uint STAGE8 = STAGE_TILES * (MAT_N / 8);  // uvec4 of one staged row
const uint STAGE_LD = (STAGE8 + 1) * BLOCK_M <= STAGE_SIZE ? STAGE8 + 1 : STAGE8;  // for the banks, where there is room
const uint STAGE_COPIES = (BLOCK_M * STAGE8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;

// stage_at returns where row `row` of the block and matrix column d are staged.
uint stage_at(const uint row, const uint d) { return row * STAGE_LD + d * (MAT_N / 8); }

// PUT_STAGE stages `uvec4 x[STAGE_COPIES]`. Every invocation of the workgroup meets it. A macro, as
// arrays sized by specialization constants cannot be arguments.
#define PUT_STAGE(x)                                                            \
    barrier(); /* the columns before are read */                                \
    [[unroll]] for (uint i = 0; i < STAGE_COPIES; i++) {                        \
        const uint at = i * WORKGROUP_SIZE + gl_LocalInvocationIndex;           \
        if (BLOCK_M * STAGE8 % WORKGROUP_SIZE == 0 || at < BLOCK_M * STAGE8) {  \
            tile[at / STAGE8 * STAGE_LD + at % STAGE8] = x[i];                  \
        }                                                                       \
    }                                                                           \
    barrier(); /* tile written before it is read */
