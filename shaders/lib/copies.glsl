// copies: the division of a tile in shared memory among the invocations of a workgroup.
//
// A tile is rows of `row8` uvec4, of eight 16-bit elements each. Copy number i of an
// invocation moves one uvec4. If whole rows fit in one round of the workgroup, an invocation
// keeps its column, and its rows are a fixed distance apart: addresses cost one addition.
//
// The includer declares the specialization constant WORKGROUP_SIZE.

uint row_of_copy(const uint i, const uint row8) {
    const uint tid = gl_LocalInvocationIndex;
    return WORKGROUP_SIZE % row8 == 0 ? tid / row8 + i * (WORKGROUP_SIZE / row8) : (i * WORKGROUP_SIZE + tid) / row8;
}

uint col_of_copy(const uint i, const uint row8) {
    const uint tid = gl_LocalInvocationIndex;
    return WORKGROUP_SIZE % row8 == 0 ? tid % row8 : (i * WORKGROUP_SIZE + tid) % row8;
}

// is_copy reports whether copy number i of this invocation is in a tile of `tile8` uvec4.
bool is_copy(const uint i, const uint tile8) {
    return tile8 % WORKGROUP_SIZE == 0 || i * WORKGROUP_SIZE + gl_LocalInvocationIndex < tile8;
}
