// matrix_constants: the specialization constants 0 to 6 of attention's kernels on
// cooperative matrices: the workgroup, the device's matrices, and the layout of their rows.

#include "matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint NUM_SUBGROUPS = 4;
layout(constant_id = 2) const uint MAT_M = 16;
layout(constant_id = 3) const uint MAT_N = 16;
layout(constant_id = 4) const uint LENGTH = 8;     // elements of an accumulator that one invocation holds
layout(constant_id = 5) const uint ROW_RUN = 4;    // see lib/rows.glsl
layout(constant_id = 6) const uint ROW_LANES = 4;
