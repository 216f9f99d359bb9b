// matrix_right: finds out which elements of a right matrix each invocation holds, as
// matrix_layout.comp does for left matrices and accumulators. Kernels that set elements of right
// matrices themselves need it.
//
//     index  (MAT_K * MAT_N)                  T: 0, 1, 2, ..., at most 255 and so exact
//     right  (subgroup size, 1 + MAX_LENGTH)  f32: number of elements, the elements
//
// Dispatch: (1, 1, 1), one subgroup.
#version 460
#include "lib/matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint MAT_M = 16;  // of left ones, which this kernel does without
layout(constant_id = 2) const uint MAT_N = 16;
layout(constant_id = 3) const uint MAX_LENGTH = 256;
layout(constant_id = 4) const uint MAT_K = 16;
layout(local_size_x_id = 0) in;

#include "lib/element.glsl"

#define MatB coopmat<T, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB>

layout(binding = 0, scalar) readonly buffer Index { uint16_t index[]; };
layout(binding = 1, scalar) writeonly buffer Right { float right[]; };

void main() {
    const uint base = gl_SubgroupInvocationID * (1 + MAX_LENGTH);
    MatB b;
    coopMatLoad(b, index, 0, MAT_N, gl_CooperativeMatrixLayoutRowMajor);
    right[base] = float(b.length());
    for (uint i = 0; i < min(b.length(), MAX_LENGTH); i++) {
        right[base + 1 + i] = float(b[i]);
    }
}
