// tile_split: the way of float32 Q, K and V from memory through shared memory
// into the matrices of the split forward kernels (lib/fwd_matrix_split.glsl).
//
// A workgroup owns BLOCK_M rows of one head: NUM_SUBGROUPS subgroups of
// ROW_TILES * MAT_M rows each. Shared memory holds rows of float16 parts
// (lib/split.glsl), in blocks of BLOCK_N rows:
//
//     K_HI  K_LO          a tile of K: one exponent for all of it
//     V_HI  V_LO  V_REST  the same keys of V, likewise
//
// and before the walk over the keys STAGE_ROWS rows of Q, first hi, then lo,
// each row with an exponent of its own. Columns past head_dim are zero. Rows
// past the last key repeat the last key: their weights are exactly zero.
//
// The includer declares the specialization constants named here, the push
// constants, and load_q, load_k and load_v (lib/split.glsl).
#ifndef LIB_TILE_SPLIT_GLSL
#define LIB_TILE_SPLIT_GLSL

const uint SUBGROUP_ROWS = ROW_TILES * MAT_M;
const uint BLOCK_M = NUM_SUBGROUPS * SUBGROUP_ROWS;
const uint COL_TILES = BLOCK_N / MAT_N;
const uint DIM_TILES = (HEAD_DIM + MAT_N - 1) / MAT_N;
const uint ROW8 = DIM_TILES * (MAT_N / 8);  // uvec4 of one row; columns past head_dim are zero
const uint LD = ROW8 + 1;                   // one more, so that rows start in different banks
const uint TILE8 = BLOCK_N * ROW8;          // uvec4 of one part of a tile of keys
const uint COPIES = (TILE8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint STAGE_ROWS = 2 * BLOCK_N;        // rows of Q whose parts fit in tile

const uint K_HI = 0;
const uint K_LO = BLOCK_N * LD;
const uint V_HI = 2 * BLOCK_N * LD;
const uint V_LO = 3 * BLOCK_N * LD;
const uint V_REST = 4 * BLOCK_N * LD;
const uint Q_HI = 0;
const uint Q_LO = STAGE_ROWS * LD;

// Copy number i of an invocation moves eight elements. Where whole rows fit in
// one round of the workgroup, an invocation keeps its column, and its rows are
// a fixed distance apart: addresses cost one addition.
const bool KEEPS_COLUMN = WORKGROUP_SIZE % ROW8 == 0;
const uint ROWS_PER_ROUND = WORKGROUP_SIZE / ROW8;

shared uvec4 tile[5 * BLOCK_N * LD];
shared uint q_exponents[BLOCK_M];
shared uvec2 tile_tops[NUM_SUBGROUPS];  // bits of the largest |K| and |V| that each subgroup has fetched

uint copy_row(const uint i) {
    const uint tid = gl_LocalInvocationIndex;
    return KEEPS_COLUMN ? tid / ROW8 + i * ROWS_PER_ROUND : (i * WORKGROUP_SIZE + tid) / ROW8;
}

uint copy_col(const uint i) {
    const uint tid = gl_LocalInvocationIndex;
    return KEEPS_COLUMN ? tid % ROW8 : (i * WORKGROUP_SIZE + tid) % ROW8;
}

// copies reports whether copy number i of this invocation is in the tile.
bool copies(const uint i) {
    return TILE8 % WORKGROUP_SIZE == 0 || i * WORKGROUP_SIZE + gl_LocalInvocationIndex < TILE8;
}

// fetches is copies for columns that are in the tensor too.
bool fetches(const uint i) {
    return copies(i) && (HEAD_DIM % MAT_N == 0 || copy_col(i) * 8 < HEAD_DIM);
}

// fetch_k returns copy number i of the key tile whose first key starts at
// base. Rows beyond `last` read row `last`.
Elems8 fetch_k(const uint base, const uint i, const uint last) {
    if (!fetches(i)) {
        return Elems8(vec4(0.0), vec4(0.0));
    }
    return load_k(base + min(copy_row(i), last) * p.k_stride_s + copy_col(i) * 8);
}

// fetch_v is fetch_k for V.
Elems8 fetch_v(const uint base, const uint i, const uint last) {
    if (!fetches(i)) {
        return Elems8(vec4(0.0), vec4(0.0));
    }
    return load_v(base + min(copy_row(i), last) * p.v_stride_s + copy_col(i) * 8);
}

// share_tops shares the largest |K| and |V| that this subgroup has fetched of a
// tile. Every invocation of the workgroup calls it, then meets a barrier.
void share_tops(const float k, const float v) {
    const uvec2 tops = subgroupMax(floatBitsToUint(vec2(k, v)));  // the bits of floats >= 0 are ordered as they are
    if (subgroupElect()) {
        tile_tops[gl_SubgroupID] = tops;
    }
}

// tile_exponents returns the exponents of the tile of K and of V.
uvec2 tile_exponents() {
    uvec2 tops = tile_tops[0];
    [[unroll]] for (uint i = 1; i < NUM_SUBGROUPS; i++) {
        tops = max(tops, tile_tops[i]);
    }
    return uvec2(exponent_of(tops.x), exponent_of(tops.y));
}

// put_kv stores the parts of copy number i of a key tile.
void put_kv(const uint i, const Elems8 k, const Elems8 v, const float k_scale, const float v_scale) {
    if (copies(i)) {
        const uint at = copy_row(i) * LD + copy_col(i);
        const Parts8 k_parts = split(k, k_scale);
        tile[K_HI + at] = k_parts.hi;
        tile[K_LO + at] = k_parts.lo;
        const Parts8 v_parts = split(v, v_scale);
        tile[V_HI + at] = v_parts.hi;
        tile[V_LO + at] = v_parts.lo;
        tile[V_REST + at] = v_parts.rest;
    }
}

// find_q_exponents fills q_exponents, one invocation for each row. Every
// invocation of the workgroup calls it, then meets a barrier.
void find_q_exponents(const uint q_base, const uint block_row) {
    for (uint row = gl_LocalInvocationIndex; row < BLOCK_M; row += WORKGROUP_SIZE) {
        float top = 0.0;
        if (block_row + row < p.seq_q) {
            [[dont_unroll]] for (uint col = 0; col < HEAD_DIM; col += 8) {
                top = max(top, largest(load_q(q_base + row * p.q_stride_s + col)));
            }
        }
        q_exponents[row] = exponent_of(floatBitsToUint(top));
    }
}

// stage_q puts the parts of rows stage .. stage + STAGE_ROWS - 1 of the block
// into tile, negated where Scale is negative. Every invocation of the workgroup
// calls it, after find_q_exponents.
void stage_q(const uint q_base, const uint block_row, const uint stage) {
    barrier();  // q_exponents written before it is read; the rows of the stage before are read
    const float sign = p.q_sign != 0 ? -1.0 : 1.0;
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < min(BLOCK_M - stage, STAGE_ROWS) * ROW8; i += WORKGROUP_SIZE) {
        const uint row = stage + i / ROW8;
        const uint col = i % ROW8 * 8;
        Elems8 x = Elems8(vec4(0.0), vec4(0.0));
        if (block_row + row < p.seq_q && col < HEAD_DIM) {
            x = load_q(q_base + row * p.q_stride_s + col);
        }
        const Parts8 parts = split(x, sign * scale_of(q_exponents[row]));
        const uint at = i / ROW8 * LD + i % ROW8;
        tile[Q_HI + at] = parts.hi;
        tile[Q_LO + at] = parts.lo;
    }
    barrier();  // tile written before it is read
}

#endif
