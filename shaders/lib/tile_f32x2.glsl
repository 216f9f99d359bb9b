// tile_f32x2: the way of float32 K and V from memory through shared memory into
// the matrices of the float32 forward kernels (lib/fwd_f32x2.glsl).
//
// Shared memory holds rows of float16 parts (lib/f32x2.glsl), in blocks of BLOCK_N rows:
//
//     K_HI  K_LO  a tile of K: one exponent for all of it
//     V_HI  V_LO  the same keys of V, likewise
//
// Columns past head_dim are zero. Rows past the last key repeat the last key:
// their weights are exactly zero.

#include "tile_shape.glsl"

const uint K_HI = 0;
const uint K_LO = BLOCK_N * LD;
const uint V_HI = 2 * BLOCK_N * LD;
const uint V_LO = 3 * BLOCK_N * LD;

const uint TILE_SIZE = 4 * BLOCK_N * LD;
shared uvec4 tile[TILE_SIZE];

#define COPY Elems8  // as in lib/tile.glsl

const bool EXPONENTS = true;
const bool FLOAT_O = true;  // split or not

// fetches is copies for columns that are in K too, fetches_value for those in V.
bool fetches(const uint i) { return copies(i) && copies_dim(copy_col(i)); }

#ifdef FEATURES
bool fetches_value(const uint i) { return copies(i) && copies_value(copy_col(i)); }
#else
#define fetches_value fetches
#endif

// fetch_k returns copy number i of the key tile whose first key starts at
// base. Rows beyond `last` read row `last`.
Elems8 fetch_k(const uint base, const uint i, const uint last) {
    if (!fetches(i)) {
        return Elems8(vec4(0.0), vec4(0.0));
    }
    return load_k(base + min(copy_row(i), last) * p.k_stride_s + copy_col(i) * 8);
}

Elems8 fetch_v(const uint base, const uint i, const uint last) {
    if (!fetches_value(i)) {
        return Elems8(vec4(0.0), vec4(0.0));
    }
    return load_v(base + min(copy_row(i), last) * p.v_stride_s + copy_col(i) * 8);
}

#include "tile_amax.glsl"

void put_kv(const uint i, const Elems8 k, const Elems8 v, const uvec2 exponents) {
    if (copies(i)) {
        const uint at = copy_row(i) * LD + copy_col(i);
        const Parts8 k_parts = split(k, scale_of(exponents.x));
        tile[K_HI + at] = k_parts.hi;
        tile[K_LO + at] = k_parts.lo;
        const Parts8 v_parts = split(v, scale_of(exponents.y));
        tile[V_HI + at] = v_parts.hi;
        tile[V_LO + at] = v_parts.lo;
    }
}
