// order: the block of rows, head and batch of a workgroup of a forward kernel, and with
// SPLIT_KV its split of the block's keys.
//
// Workgroups start in the order of their number, x first. Without groups the
// dispatch is (blocks, num_heads, batch): blocks of one head are neighbours and
// share its K and V in the cache. With p.group_heads > 0, which divides
// batch * num_heads, it is
//
//     (group_heads, blocks, batch * num_heads / group_heads)
//
// and the heads of a group take their blocks in turn. Under a causal mask the
// last blocks, the longest, come first, so that no long one is left for the end.
// With SPLIT_KV there are blocks * splits instead of blocks, and the splits of a
// block are neighbours.
//
// The includer declares `const bool CAUSAL`, `const bool SPLIT_KV` and the push
// constants p.
#ifndef LIB_ORDER_GLSL
#define LIB_ORDER_GLSL

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
    if (p.group_heads > 0) {
        block = gl_WorkGroupID.y;
        blocks = gl_NumWorkGroups.y;
        const uint number = gl_WorkGroupID.z * p.group_heads + gl_WorkGroupID.x;
        batch = number / p.num_heads;
        head = number - batch * p.num_heads;
    }
    if (CAUSAL) {
        block = blocks - 1 - block;
    }
    uint kv_head = head;
    if (p.heads_per_kv > 1) {
        kv_head = head / p.heads_per_kv;
    }
    if (SPLIT_KV) {
        return Work(block / p.splits, head, kv_head, batch, block % p.splits);
    }
    return Work(block, head, kv_head, batch, 0);
}

#endif
