// philox: random numbers from a counter.
#extension GL_EXT_control_flow_attributes : require

// philox returns the 128 random bits that belong to a counter under a key: Philox-4x32-10 of Salmon,
// Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The Go twin, with the
// formula, is internal/attention/philox.
uvec4 philox(uvec4 counter, uvec2 key) {
    [[unroll]] for (uint i = 0; i < 10; i++) {
        uint hi0, lo0, hi1, lo1;
        umulExtended(0xD2511F53u, counter.x, hi0, lo0);
        umulExtended(0xCD9E8D57u, counter.z, hi1, lo1);
        counter = uvec4(hi1 ^ counter.y ^ key.x, lo1, hi0 ^ counter.w ^ key.y, lo0);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}
