// fence: a limit on how far ahead of their products a compiler loads operands.
//
// The includer declares the specialization constant LOAD_AHEAD.

// fence, called before the loads of operand number i of a loop, keeps the compiler from loading
// operands far ahead of their products. That would take registers, and spill beyond 255 of them.
// fence orders the shared memory accesses of one subgroup, and is no instruction on NVIDIA.
void fence(const uint i) {
    if (LOAD_AHEAD > 0 && i % LOAD_AHEAD == 0) {
        subgroupMemoryBarrierShared();
    }
}
