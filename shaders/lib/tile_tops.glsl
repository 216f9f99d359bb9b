// tile_tops: one exponent (lib/split.glsl) for all of a tile, of two tensors at a time.
//
// The includer declares the specialization constant NUM_SUBGROUPS and includes
// lib/split.glsl.
#ifndef LIB_TILE_TOPS_GLSL
#define LIB_TILE_TOPS_GLSL

shared uvec2 tile_tops[NUM_SUBGROUPS];  // bits of the largest magnitudes that each subgroup has fetched

// share_tops shares the largest magnitudes that this invocation has fetched of a tile
// of two tensors. Every invocation of the workgroup calls it, then meets a barrier.
//
// The maximum is that of floats, though their bits are ordered as they are: with NVIDIA's
// driver 580 kernels that are short of registers go on with another exponent than an
// integer subgroupMax had found (TestReductions forbids those).
void share_tops(const float first, const float second) {
    const uvec2 tops = floatBitsToUint(subgroupMax(vec2(first, second)));
    if (subgroupElect()) {
        tile_tops[gl_SubgroupID] = tops;
    }
}

// tile_exponents returns the exponents of both tensors' tile.
uvec2 tile_exponents() {
    uvec2 tops = tile_tops[0];
    [[unroll]] for (uint i = 1; i < NUM_SUBGROUPS; i++) {
        tops = max(tops, tile_tops[i]);
    }
    return uvec2(exponent_of(tops.x), exponent_of(tops.y));
}

#endif
