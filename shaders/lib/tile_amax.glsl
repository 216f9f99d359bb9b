// tile_amax: one exponent (lib/f32x2.glsl) for all of a tile, of two tensors at a time.
//
// The includer declares the specialization constants NUM_SUBGROUPS and WORKGROUP_SIZE and
// includes lib/f32x2.glsl.

shared uvec2 tile_amax[NUM_SUBGROUPS];  // exponents of the largest that each subgroup has fetched

// share_amax shares the exponents of the largest magnitudes that this invocation has fetched
// of a tile of two tensors. Every invocation of the workgroup calls it, then meets a barrier.
//
// Both go through one shuffle, as whole numbers in float16. An integer subgroupMax would be wrong
// in kernels that are short of registers, with NVIDIA's driver 580 (TestReductions forbids it).
void share_amax(const float first, const float second) {
    f16vec2 amax = f16vec2(exponent_of(floatBitsToUint(first)), exponent_of(floatBitsToUint(second)));
    [[unroll]] for (uint lanes = 1; lanes < WORKGROUP_SIZE / NUM_SUBGROUPS; lanes *= 2) {
        amax = max(amax, unpackFloat2x16(subgroupShuffleXor(packFloat2x16(amax), lanes)));
    }
    if (subgroupElect()) {
        tile_amax[gl_SubgroupID] = uvec2(amax);
    }
}

uvec2 tile_exponents() {
    uvec2 amax = tile_amax[0];
    [[unroll]] for (uint i = 1; i < NUM_SUBGROUPS; i++) {
        amax = max(amax, tile_amax[i]);
    }
    return amax;
}
