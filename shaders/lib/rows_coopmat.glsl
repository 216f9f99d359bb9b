// rows_coopmat: the functions that need the layout of matrices, on VK_KHR_cooperative_matrix alone.
//
//     reduce_matrix  reductions of rows, where lib/rows.glsl does not know the layout
//     element_index  the index of each element that an invocation holds
//     to_left        an accumulator as a left matrix
//
// KHR leaves the layout open. If it is unknown, the functions take a detour through shared
// memory, whose layout is known.
//
// Every invocation of the subgroup reaches a call.

const uint SCRATCH_LD = MAT_N + 4;  // four more for the banks; 16 bytes keep rows aligned
const uint PACKED_WORDS = SAME_LAYOUT ? 1 : MAT_M * MAT_N / 2;

shared float scratch[NUM_SUBGROUPS * MAT_M * SCRATCH_LD];
shared uint packed[NUM_SUBGROUPS * PACKED_WORDS];

uint scratch_base() { return gl_SubgroupID * MAT_M * SCRATCH_LD; }

// scratch_barrier orders the scratch writes of a subgroup before its reads, and its reads
// before the next writes. With LOCKSTEP, all invocations of a subgroup execute an instruction
// at once, so it needs no barrier. lavapipe (Mesa 26.1) is such a device. Its subgroupBarrier
// waits for the whole workgroup, and would pair with another subgroup's barrier() if only one
// of them rescales or masks.
void scratch_barrier() {
    subgroupMemoryBarrierShared();
    if (!LOCKSTEP) {
        subgroupBarrier();
    }
}

// reduce_matrix gives every element of x the maximum (or with SUM the sum) of its row.
MatC reduce_matrix(const MatC x, const bool SUM) {
    const uint base = scratch_base();
    scratch_barrier();
    coopMatStore(x, scratch, base, SCRATCH_LD, ROW_MAJOR);
    scratch_barrier();
    for (uint row = gl_SubgroupInvocationID; row < MAT_M; row += gl_SubgroupSize) {
        float r = scratch[base + row * SCRATCH_LD];
        for (uint col = 1; col < MAT_N; col++) {
            const float y = scratch[base + row * SCRATCH_LD + col];
            r = SUM ? r + y : max(r, y);
        }
        for (uint col = 0; col < MAT_N; col++) {
            scratch[base + row * SCRATCH_LD + col] = r;
        }
    }
    scratch_barrier();
    MatC result;
    coopMatLoad(result, scratch, base, SCRATCH_LD, ROW_MAJOR);
    return result;
}

// element_index returns the matrix whose element (row, col) is row * MAT_N + col.
MatC element_index() {
    const uint base = scratch_base();
    scratch_barrier();
    for (uint i = gl_SubgroupInvocationID; i < MAT_M * MAT_N; i += gl_SubgroupSize) {
        scratch[base + i / MAT_N * SCRATCH_LD + i % MAT_N] = float(i);
    }
    scratch_barrier();
    MatC result;
    coopMatLoad(result, scratch, base, SCRATCH_LD, ROW_MAJOR);
    return result;
}

// to_left returns x in the storage format, as a left matrix; with WEIGHT, x is
// a matrix of softmax weights.
MatA to_left(const MatC x, const bool WEIGHT) {
    if (SAME_LAYOUT) {
        return copy_to_left(x, WEIGHT);
    }
    MatA result;
    const uint base = scratch_base();
    const uint words = gl_SubgroupID * PACKED_WORDS;
    scratch_barrier();
    coopMatStore(x, scratch, base, SCRATCH_LD, ROW_MAJOR);
    scratch_barrier();
    for (uint i = gl_SubgroupInvocationID; i < MAT_M * MAT_N / 2; i += gl_SubgroupSize) {
        const uint at = base + i / (MAT_N / 2) * SCRATCH_LD + i % (MAT_N / 2) * 2;
        packed[words + i] = narrow(scratch[at]) | narrow(scratch[at + 1]) << 16;
    }
    scratch_barrier();
    coopMatLoad(result, packed, words, MAT_N / 2, ROW_MAJOR);
    return result;
}
