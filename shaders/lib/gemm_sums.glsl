// gemm_sums: the way of the sums of a block from matrices through shared memory to store_strip.
//
// Each subgroup stores one row of matrices of C at a time, as many columns as fit into tile.
// Before, tile holds the operands, OPERANDS_SIZE uvec4.
//
// The includer declares the constants named here, and includes lib/gemm_order.glsl and
// lib/matrix_types.glsl, and after this file what defines store_strip.

const uint STRIP_SIZE = SUBGROUPS_M * SUBGROUPS_N * MAT_M;  // rows of all subgroups
#ifdef PACKED
// Rows at odd places: the ends of a strip are written element by element, so strips are wide.
const uint LEAST_TILES = OUT_ALIGNED ? 1 : TILES_N < 4 ? TILES_N : 4;
#else
const uint LEAST_TILES = 1;
#endif
const uint LEAST_SIZE = STRIP_SIZE * (LEAST_TILES * (MAT_N / 4) + 1);  // uvec4 of LEAST_TILES columns of matrices
const uint TILE_SIZE = OPERANDS_SIZE > LEAST_SIZE ? OPERANDS_SIZE : LEAST_SIZE;
const uint FITTING_TILES = (TILE_SIZE / STRIP_SIZE - 1) / (MAT_N / 4);
const uint MOST_TILES = FITTING_TILES < TILES_N ? FITTING_TILES : TILES_N;
const uint OUT_TILES = MOST_TILES < 2 ? 1 : MOST_TILES < 4 ? 2 : 4;  // a power of two, so that rounds of a subgroup are whole rows
const uint OUT_STAGES = (TILES_N + OUT_TILES - 1) / OUT_TILES;
const uint OUT_COLS4 = OUT_TILES * (MAT_N / 4);  // uvec4 of a row
const uint OUT_LD = (OUT_COLS4 + 2) * STRIP_SIZE <= TILE_SIZE ? OUT_COLS4 + 2 : OUT_COLS4 + 1;  // for the banks

shared uvec4 tile[TILE_SIZE];

// strip_barrier orders what a subgroup writes to its part of tile before what it reads,
// and the other way around.
void strip_barrier() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

uint columns_end(const Work w, const uint n) {
    return min(n, w.col + (gl_SubgroupID % SUBGROUPS_N + 1) * SUBGROUP_N);
}

// A strip of a subgroup is MAT_M rows from row on and OUT_TILES columns of matrices from col on.
// Strips have numbers, constants in unrolled code: strip / OUT_STAGES is the row of matrices.
//
// store_strip copies the strip from tile to memory. lib/gemm_strip.glsl has one, or the
// includer's own.
void store_strip(const Work w, const uint row, const uint col, const uint strip);

// STORE_SUMS(sum, w, row, col) stores `MatC sum[TILES_M * TILES_N]`, the sums of this
// subgroup for the rows of C from row on and the columns from col on, once all operands in
// tile are read. With PARTIAL it changes w. A macro, as arrays sized by specialization
// constants cannot be arguments. The first barrier comes after the operands are read; of the
// other two one after the strip before is read, one after tile is written.
#define STORE_SUMS(sum, w, row, col)                           \
    if (PARTIAL) {                                             \
        w.batch += w.split * (gl_NumWorkGroups.z / p.splits);  \
    }                                                          \
    barrier();                                                 \
    STORE_STRIPS(sum, w, row, col)

// STORE_STRIPS is the rest of it.
#define STORE_STRIPS(sum, w, row, col)                                                                                    \
    [[unroll]] for (uint strip = 0; strip < TILES_M * OUT_STAGES; strip++) {                                              \
        const uint first = strip / OUT_STAGES * TILES_N;                                                                  \
        strip_barrier();                                                                                                  \
        [[unroll]] for (uint e = 0; e < OUT_TILES; e++) {                                                                 \
            const uint j = strip % OUT_STAGES * OUT_TILES + e;                                                            \
            if (j < TILES_N) {                                                                                            \
                coopMatStore(sum[first + j], tile, gl_SubgroupID * MAT_M * OUT_LD + e * (MAT_N / 4), OUT_LD, ROW_MAJOR);  \
            }                                                                                                             \
        }                                                                                                                 \
        strip_barrier();                                                                                                  \
        store_strip(w, row + strip / OUT_STAGES * MAT_M, col + strip % OUT_STAGES * OUT_TILES * MAT_N, strip);            \
    }
