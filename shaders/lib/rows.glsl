// rows: the rows of an accumulator among the invocations of a subgroup.
//
// The device decides which invocation holds which element of a matrix. On most devices
// elements i*ROW_RUN .. (i+1)*ROW_RUN - 1 of an invocation's LENGTH belong to one row, which
// it shares with the aligned group of ROW_LANES invocations around it, and left matrices have
// the layout of accumulators (SAME_LAYOUT). Some devices:
//
//     device                  matrix  ROW_RUN  ROW_LANES
//     NVIDIA                  16x16   4        4
//     lavapipe, subgroup 8    8x8     1        8
//
// matrix_layout.comp finds that out. On other devices ROW_RUN = 1 and ROW_LANES = 0, and each
// element counts as a row of its own.
//
// The other functions that need the layout are in lib/rows_coopmat2.glsl with COOPMAT2, by the
// reductions, conversions and per-element operations of VK_NV_cooperative_matrix2 at subgroup scope,
// and without it in lib/rows_coopmat.glsl, through shared memory.
//
// The includer includes lib/matrix_constants.glsl, lib/element.glsl and lib/matrix_types.glsl,
// and declares the specialization constants SAME_LAYOUT and LOCKSTEP.
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require

const uint ROWS = LENGTH / ROW_RUN;  // rows of a matrix that one invocation holds a part of

// reduce_matrix is lib/rows_coopmat.glsl's or lib/rows_coopmat2.glsl's.
MatC reduce_matrix(const MatC x, const bool SUM);

// reduce turns the maxima (or with SUM the sums) over each invocation's elements of its rows
// into those over whole rows. Element i of x, for i < ROWS, stands for row i. x is a matrix
// because arrays sized by specialization constants cannot be arguments.
MatC reduce(const MatC x, const bool SUM) {
    if (ROW_LANES == 0) {
        return reduce_matrix(x, SUM);
    }
    MatC result = x;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint lanes = 1; lanes < ROW_LANES; lanes *= 2) {
            const float y = subgroupShuffleXor(result[i], lanes);
            result[i] = SUM ? result[i] + y : max(result[i], y);
        }
    }
    return result;
}

// speaks_for_row reports whether this invocation, of those that share a row, writes the row's
// results; index is element_index of the first element that it holds of the row.
bool speaks_for_row(const float index) {
    return ROW_LANES > 0 ? gl_SubgroupInvocationID % ROW_LANES == 0 : uint(index) % MAT_N == 0;
}

// copy_to_left converts x element by element, which is right with SAME_LAYOUT.
MatA copy_to_left(const MatC x, const bool WEIGHT) {
    MatA result;
    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
        result[i] = WEIGHT ? WEIGHT_TO_T(x[i]) : TO_T(x[i]);
    }
    return result;
}

#ifdef COOPMAT2
#include "rows_coopmat2.glsl"
#else
#include "rows_coopmat.glsl"
#endif
