// fence: a limit on how far ahead of their products a compiler loads operands.
//
// The includer declares the specialization constant FENCE.

// fence, called before the loads of operand number i of a loop, keeps the compiler from loading
// operands far ahead of their products. That would take registers, and spill beyond 255 of them.
// fence orders the shared memory accesses of one subgroup, and is no instruction on NVIDIA.
void fence(const uint i) {
    if (FENCE > 0 && i % FENCE == 0) {
        subgroupMemoryBarrierShared();
    }
}
