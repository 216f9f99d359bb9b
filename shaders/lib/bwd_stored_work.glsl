// bwd_stored_work: which rows a workgroup has that stores P and dX, and which pages are theirs
// (lib/pages.glsl). A part of the body of backward_dq() in lib/bwd_dq_matrix.glsl, the first.
//
// The dispatch is (heads of a group, blocks, groups). It defines number, of the head among those
// whose pages are stored, batch, head, kv_head, block_number and block_row.

    const uint number = gl_WorkGroupID.z * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (number >= p.heads) {
        return;
    }
    const uint head_number = p.first_head + number / p.members * p.heads_per_kv + number % p.members;
    const uint batch = head_number / num_heads();
    const uint head = head_number % num_heads();
    const uint block_number = CAUSAL ? gl_NumWorkGroups.y - 1 - gl_WorkGroupID.y : gl_WorkGroupID.y;
    const uint block_row = block_number * BLOCK_M;
    const uint kv_head = head / p.heads_per_kv;
