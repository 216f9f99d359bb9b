// order: the block of rows or keys, head and batch of a workgroup of an attention kernel, and
// with SPLIT_KV its split of the block's keys.
//
// Workgroups start in the order of their number, x first. Without groups the
// dispatch is (blocks, heads, batch): blocks of one head are neighbours and
// share what they walk over in the cache, K and V or Q and dO. With GROUPED it is
//
//     (GROUP_HEADS, blocks, batch * heads / GROUP_HEADS)
//
// and the heads of a group take their blocks in turn. Under a causal mask the longest blocks, the
// last of rows or the first of keys, come first, so that no long one is left for the end. With
// SPLIT_KV there are blocks * splits instead of blocks, and the splits of a block are neighbours.
//
// The includer defines
//
//     GROUPED       whether there are groups; it may be a constant
//     GROUP_HEADS   heads of a group
//     BATCH_HEADS   heads of a batch: num_heads, or of blocks of keys num_kv_heads
//     SAME_KV       heads that read the same keys: heads_per_kv, or of blocks of keys 1
//     LAST_FIRST    whether the last block comes first
//     SPLITS        where there are any, and declares `const bool SPLIT_KV`

struct Work {
    uint block;
    uint head;
    uint kv_head;
    uint batch;
    uint split;  // 0 without SPLIT_KV
};

// Nothing can be loaded before this is known, and an integer division takes a hundred cycles
// on NVIDIA: so there are as few as possible.
Work next_work() {
    uint block = gl_WorkGroupID.x;
    uint blocks = gl_NumWorkGroups.x;
    uint head = gl_WorkGroupID.y;
    uint batch = gl_WorkGroupID.z;
    if (GROUPED) {
        block = gl_WorkGroupID.y;
        blocks = gl_NumWorkGroups.y;
        const uint number = gl_WorkGroupID.z * GROUP_HEADS + gl_WorkGroupID.x;
        batch = number / BATCH_HEADS;
        head = number - batch * BATCH_HEADS;
    }
    if (LAST_FIRST) {
        block = blocks - 1 - block;
    }
    uint kv_head = head;
    if (SAME_KV > 1) {
        kv_head = head / SAME_KV;
    }
#ifdef SPLITS
    if (SPLIT_KV) {
        return Work(block / SPLITS, head, kv_head, batch, block % SPLITS);
    }
#endif
    return Work(block, head, kv_head, batch, 0);
}
