// order: which block of rows, head and batch a workgroup of a forward kernel
// works on, and with SPLIT_KV which split of the block's keys.
//
// Workgroups start in the order of their number. Heads are taken in groups of
// group_heads; within a group all heads' longest blocks come first, under a
// causal mask the last ones, so that no long block is left for the end. With
// group_heads = 1 the blocks of one head are neighbours and share its K and V
// in the cache.
//
// The dispatch is (blocks, num_heads, batch), with SPLIT_KV
// (blocks * splits, num_heads, batch): the splits of a block are neighbours. The
// includer declares `const bool CAUSAL`, `const bool SPLIT_KV` and the push
// constants p.
#ifndef LIB_ORDER_GLSL
#define LIB_ORDER_GLSL

struct Work {
    uint block;
    uint head;
    uint batch;
    uint split;  // 0 without SPLIT_KV
};

Work next_work() {
    const uint blocks = gl_NumWorkGroups.x;
    const uint heads = gl_NumWorkGroups.y * gl_NumWorkGroups.z;
    const uint number = gl_WorkGroupID.x + blocks * (gl_WorkGroupID.y + gl_NumWorkGroups.y * gl_WorkGroupID.z);
    const uint first = number / (blocks * p.group_heads) * p.group_heads;
    const uint size = min(p.group_heads, heads - first);
    const uint i = number - first * blocks;  // within the group
    const uint head = first + i % size;
    const uint block = CAUSAL ? blocks - 1 - i / size : i / size;
    const Work work = Work(block, head % gl_NumWorkGroups.y, head / gl_NumWorkGroups.y, 0);
    return SPLIT_KV ? Work(block / p.splits, work.head, work.batch, block % p.splits) : work;
}

#endif
