// decode_tiles: the online softmax of a subgroup over its keys, on matrices of which nothing is known
// (attention_decode.comp; lib/decode_matrix.glsl knows where NVIDIA keeps elements).
//
//     S = Q * Kᵀ   MAT_M rows, all of a unit, by the MAT_N keys of a tile
//     O = P * V    likewise by columns
//
// A subgroup has a tile of K, then of V, in shared memory, while the next one is on its way to
// registers. Scores and weights go through shared memory, too: LANES lanes have the keys of a row. O stays
// in matrices; `index` says of which row an element is.
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = TILES_ID) const uint MAT_M = 16;
layout(constant_id = TILES_ID + 1) const uint MAT_N = 16;
layout(constant_id = TILES_ID + 2) const bool LOCKSTEP = false;  // see lib/rows_coopmat.glsl

#ifdef CACHE8
#define HALVES(x, y) uvec4(packHalf2x16(x.xy), packHalf2x16(x.zw), packHalf2x16(y.xy), packHalf2x16(y.zw))
#define OPERANDS(x) HALVES(WORDS_QUAD(x, 0), WORDS_QUAD(x, 1))  // exact: lib/cache8.glsl
#else
#define OPERANDS(x) (x)
#endif

#include "matrix_types.glsl"

const uint STRIPES = SUBGROUPS;
const uint LANES = SUBGROUP_SIZE / MAT_M;
const uint EACH = MAT_N / LANES;  // scores of a lane
const uint V_TILES = (VALUE_DIM + MAT_N - 1) / MAT_N;

// Words are 8 elements. Rows begin in different banks.
const uint K_WORDS = (HEAD_DIM + MAT_N - 1) / MAT_N * MAT_N / 8;
const uint V_WORDS = V_TILES * MAT_N / 8;
const uint TILE_LD = (K_WORDS > V_WORDS ? K_WORDS : V_WORDS) + 1;
const uint OUT_LD = MAT_N / 4 + 1;  // of float32
const uint TILE_WORDS = MAT_N * TILE_LD > MAT_M * OUT_LD ? MAT_N * TILE_LD : MAT_M * OUT_LD;

// Rows at a time whose O of all stripes is in shared memory: about 8 KiB, with two at least.
const uint FIT_ROWS = 2048 / (STRIPES * VALUE_DIM);
const uint PASS_ROWS = FIT_ROWS >= 16 ? 16 : FIT_ROWS >= 8 ? 8 : FIT_ROWS >= 4 ? 4 : 2;

shared uvec4 q_rows[MAT_M * (K_WORDS + 1)];
shared uvec4 tiles[SUBGROUPS * TILE_WORDS];
shared float scores[SUBGROUPS * MAT_M * MAT_N];
shared uint weights[SUBGROUPS * MAT_M * MAT_N / 2];

// Sums are what a subgroup knows of its rows: of the lane's row the maximum m and the lane's part of l, and O.
struct Sums {
    float m, l;
    MatC o[V_TILES];
};

uint stripe() { return gl_SubgroupID; }
uint lane_row() { return gl_SubgroupInvocationID / LANES; }

// lane_key returns which key of a tile a lane's score j is of.
uint lane_key(const uint j) { return (j / 2 * LANES + gl_SubgroupInvocationID % LANES) * 2 + j % 2; }

// tile_barrier orders the subgroup's writes of shared memory before its reads, and its reads before the next
// writes.
void tile_barrier() {
    subgroupMemoryBarrierShared();
    if (!LOCKSTEP) {
        subgroupBarrier();
    }
}

// DEFINE_TILE(name, Name, WORDS, DIM) makes `Name`, a lane's words of a tile of K or V, `load_name`, which loads
// them, and `put_name`, which puts them into shared memory. For keys that no row sees it takes the nearest that
// some row sees; words beyond a row are zeros.
#define DEFINE_TILE(name, Name, WORDS, DIM)                                                                           \
    struct Name { Words at[(MAT_N * WORDS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE]; };                                   \
    void load_##name(const Part part, const uint tile, inout Name x) {                                                \
        [[unroll]] for (uint n = 0; n < x.at.length(); n++) {                                                         \
            const uint i = n * SUBGROUP_SIZE + gl_SubgroupInvocationID;                                               \
            const uint key = uint(clamp(int(tile * TILE + i / WORDS), part.sequence.from, part.end - 1));             \
            const uint page = PAGE_SIZE > 0 ? look_up(part, key) : part.cache;                                        \
            const uint row = HEAD_AT(name, page, part.kv_head) + key % KEYS_OF_PAGE * p.name##_stride_s;              \
            const bool has = i % WORDS * 8 < DIM;                                                                     \
            const Words y = load_##name(row + (has ? i % WORDS * 8 : 0), VEC);                                        \
            x.at[n] = has ? y : Words(0);                                                                             \
        }                                                                                                             \
    }                                                                                                                 \
    void put_##name(const Name x) {                                                                                   \
        [[unroll]] for (uint n = 0; n < x.at.length(); n++) {                                                         \
            const uint i = n * SUBGROUP_SIZE + gl_SubgroupInvocationID;                                               \
            if (i < MAT_N * WORDS) {                                                                                  \
                tiles[gl_SubgroupID * TILE_WORDS + i / WORDS * TILE_LD + i % WORDS] = OPERANDS(x.at[n]);              \
            }                                                                                                         \
        }                                                                                                             \
    }

const uint KEYS_OF_PAGE = PAGE_SIZE > 0 ? PAGE_SIZE : 1u << 31;

DEFINE_TILE(k, Keys, K_WORDS, HEAD_DIM)
DEFINE_TILE(v, Values, V_WORDS, VALUE_DIM)

#include "decode_no_ahead.glsl"

// share_q puts the part's rows into shared memory, and returns the matrix whose elements are their rows. The
// whole workgroup calls it.
MatC share_q(const Part part) {
    barrier();  // q_rows of the part before are read
    for (uint i = gl_LocalInvocationIndex; i < MAT_M * K_WORDS; i += WORKGROUP_SIZE) {
        const uint column = i % K_WORDS * 8;
        q_rows[i / K_WORDS * (K_WORDS + 1) + i % K_WORDS] = column < HEAD_DIM ? load_q(q_at(part, i / K_WORDS) + column, VEC) : uvec4(0);
    }
    for (uint i = gl_SubgroupInvocationID; i < MAT_M * MAT_N; i += SUBGROUP_SIZE) {
        scores[gl_SubgroupID * MAT_M * MAT_N + i] = float(i / MAT_N);
    }
    barrier();  // they are written
    MatC index;
    coopMatLoad(index, scores, gl_SubgroupID * MAT_M * MAT_N, MAT_N, ROW_MAJOR);
    return index;
}

// read_keys sums up the part's keys. Each subgroup takes every STRIPES-th tile.
void read_keys(const Part part, const Ahead ahead, inout Sums sums) {
    sums.m = MAX_INIT;
    sums.l = 0.0;
    [[unroll]] for (uint d = 0; d < V_TILES; d++) {
        sums.o[d] = MatC(0.0);
    }
    const MatC index = share_q(part);
    if (part.end <= part.sequence.from) {
        return;
    }
    const uint base = gl_SubgroupID * MAT_M * MAT_N;  // of scores, and of weights twice
    const Row row = row_of(part, lane_row());
    const uint step = STRIPES * apart();
    uint tile = part.first + stripe() * apart();
    Keys k;
    if (tile < part.last) {
        load_k(part, tile, k);
    }
    [[dont_unroll]] for (; tile < part.last; tile += step) {
        Values v;
        load_v(part, tile, v);
        tile_barrier();  // the tile before is read
        put_k(k);
        if (tile + step < part.last) {
            load_k(part, tile + step, k);
        }
        tile_barrier();  // the keys are written
        MatC s = MatC(0.0);
        [[unroll]] for (uint d = 0; d < K_WORDS; d += MAT_N / 8) {
            MatA a;
            MatB b;
            coopMatLoad(a, q_rows, d, K_WORDS + 1, ROW_MAJOR);
            coopMatLoad(b, tiles, gl_SubgroupID * TILE_WORDS + d, TILE_LD, COLUMN_MAJOR);
            s = coopMatMulAdd(a, b, s);
        }
        coopMatStore(s, scores, base, MAT_N, ROW_MAJOR);
        tile_barrier();  // the keys are read, scores written
        put_v(v);
        float x[EACH];
        float top = NEG_INF;
        [[unroll]] for (uint j = 0; j < EACH; j++) {
            const float y = scores[base + lane_row() * MAT_N + lane_key(j)] * SCORE_SCALE(part);
            x[j] = score(row, part, y, int(tile * TILE + lane_key(j)));
            top = max(top, x[j]);
        }
        [[unroll]] for (uint n = 1; n < LANES; n *= 2) {
            top = max(top, subgroupShuffleXor(top, n));
        }
        if (subgroupAny(top > sums.m + SLACK)) {
            top = max(top, sums.m);
            const float alpha = exp2(sums.m - top);
            sums.m = top;
            sums.l *= alpha;
            [[unroll]] for (uint e = 0; e < index.length(); e++) {
                const float of_row = subgroupShuffle(alpha, uint(index[e]) * LANES);
                [[unroll]] for (uint d = 0; d < V_TILES; d++) {
                    sums.o[d][e] *= of_row;
                }
            }
        }
        [[unroll]] for (uint j = 0; j < EACH; j += 2) {
            const vec2 y = exp2(vec2(x[j], x[j + 1]) - sums.m);
            sums.l += y.x + y.y;
            weights[(base + lane_row() * MAT_N + lane_key(j)) / 2] = narrow(y.x) | narrow(y.y) << 16;
        }
        tile_barrier();  // weights and values are written
        MatA w;
        coopMatLoad(w, weights, base / 2, MAT_N / 2, ROW_MAJOR);
        [[unroll]] for (uint d = 0; d < V_TILES; d++) {
            MatB b;
            coopMatLoad(b, tiles, gl_SubgroupID * TILE_WORDS + d * (MAT_N / 8), TILE_LD, ROW_MAJOR);
            sums.o[d] = coopMatMulAdd(w, b, sums.o[d]);
        }
    }
}

#include "decode_combine.glsl"

// share_rows adds up the lanes' parts, and puts m and l of each row into shared memory.
void share_rows(inout Sums sums) {
    [[unroll]] for (uint n = 1; n < LANES; n *= 2) {
        sums.l += subgroupShuffleXor(sums.l, n);
    }
    row_sums[stripe() * ROWS + lane_row()] = vec2(sums.m, sums.l);  // the same of all lanes of a row
}

// put_rows puts O of the rows r0 to r0+PASS_ROWS-1 into shared memory.
void put_rows(const Sums sums, const uint r0) {
    [[unroll]] for (uint d = 0; d < V_TILES; d++) {
        tile_barrier();  // the tile before is read
        coopMatStore(sums.o[d], tiles, gl_SubgroupID * TILE_WORDS, OUT_LD, ROW_MAJOR);
        tile_barrier();  // it is written
        for (uint i = gl_SubgroupInvocationID; i < MAT_M * MAT_N / 4; i += SUBGROUP_SIZE) {
            const uint r = i / (MAT_N / 4) - r0;
            const uint quad_col = d * (MAT_N / 4) + i % (MAT_N / 4);
            if (r < PASS_ROWS && quad_col < ROW_QUADS) {
                put_quad(r, quad_col, uintBitsToFloat(tiles[gl_SubgroupID * TILE_WORDS + i / (MAT_N / 4) * OUT_LD + i % (MAT_N / 4)]));
            }
        }
    }
}

DEFINE_COMBINE_SUBGROUPS
