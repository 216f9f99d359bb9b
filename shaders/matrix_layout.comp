// matrix_layout: finds out which elements of a matrix each invocation holds.
//
// A left matrix, MAT_M x MAT_K, and an accumulator, MAT_M x MAT_N, are loaded with element
// (row, col) = row * columns + col, at most 255 and so exact in every format; each invocation
// writes what it holds.
//
//     index    (MAT_M * MAT_K)               T: 0, 1, 2, ...
//     index32  (MAT_M * MAT_N)               f32: 0, 1, 2, ...
//     left     (subgroup size, 1 + MAX_LENGTH)  f32: number of elements, the elements
//     acc      (subgroup size, 1 + MAX_LENGTH)  f32: likewise, of the accumulator
//
// Dispatch: (1, 1, 1), one subgroup.
#version 460
#include "lib/matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint MAT_M = 16;
layout(constant_id = 2) const uint MAT_N = 16;
layout(constant_id = 3) const uint MAX_LENGTH = 256;
layout(constant_id = 4) const uint MAT_K = 16;
layout(local_size_x_id = 0) in;

#include "lib/element.glsl"

#define MatA coopmat<T, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA>
#define MatC coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>

layout(binding = 0, scalar) readonly buffer Index { uint16_t index[]; };
layout(binding = 1, scalar) readonly buffer Index32 { float index32[]; };
layout(binding = 2, scalar) writeonly buffer Left { float left[]; };
layout(binding = 3, scalar) writeonly buffer Acc { float acc[]; };

void main() {
    const uint base = gl_SubgroupInvocationID * (1 + MAX_LENGTH);
    MatA a;
    coopMatLoad(a, index, 0, MAT_K, gl_CooperativeMatrixLayoutRowMajor);
    left[base] = float(a.length());
    for (uint i = 0; i < min(a.length(), MAX_LENGTH); i++) {
        left[base + 1 + i] = float(a[i]);
    }
    MatC c;
    coopMatLoad(c, index32, 0, MAT_N, gl_CooperativeMatrixLayoutRowMajor);
    acc[base] = float(c.length());
    for (uint i = 0; i < min(c.length(), MAX_LENGTH); i++) {
        acc[base + 1 + i] = c[i];
    }
}
