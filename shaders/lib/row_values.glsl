// row_values: one value for each row of a micro-tile, shared among the invocations
// of the same rows.

// One value for each row of an invocation.
struct RowValues { float at[ROWS]; };

// share_partials shares one value for each row of this invocation with the
// invocations of the same rows. Every invocation of the workgroup calls it.
void share_partials(const RowValues x, const uint ty, const uint tx) {
    barrier();  // the values shared before are read
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        partial[(ty * ROWS + i) * THREADS_X + tx] = x.at[i];
    }
    barrier();  // partial written before it is read
}
