// matrix_layout: do accumulators and left matrices of a device hold their
// elements in the same order?
//
// Both are loaded with element (row, col) = row * MAT_N + col, at most 256 and
// so exact in every format, and compared element by element.
//
//     index     (MAT_M * MAT_N)          T: 0, 1, 2, ...
//     index32   (MAT_M * MAT_N)          f32: 0, 1, 2, ...
//     mismatch  (subgroup size)          u32: differing elements of each invocation, NONE if the counts differ
//
// Dispatch: (1, 1, 1), one subgroup.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_bfloat16 : enable
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_cooperative_matrix : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 32;
layout(constant_id = 1) const uint MAT_M = 16;
layout(constant_id = 2) const uint MAT_N = 16;
layout(local_size_x_id = 0) in;

#include "lib/element.glsl"
#include "lib/matrix_types.glsl"

layout(binding = 0, scalar) readonly buffer Index { uint16_t index[]; };
layout(binding = 1, scalar) readonly buffer Index32 { float index32[]; };
layout(binding = 2, scalar) writeonly buffer Mismatch { uint mismatch[]; };

const uint NONE = 0xffffffffu;

void main() {
    MatA a;
    MatC c;
    coopMatLoad(a, index, 0, MAT_N, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(c, index32, 0, MAT_N, gl_CooperativeMatrixLayoutRowMajor);
    uint n = 0;
    if (a.length() != c.length()) {
        n = NONE;
    } else {
        for (uint i = 0; i < c.length(); i++) {
            n += float(a[i]) != c[i] ? 1 : 0;
        }
    }
    mismatch[gl_SubgroupInvocationID] = n;
}
