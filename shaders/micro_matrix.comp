// micro_matrix: the rate at which a device multiplies matrices in registers.
//
//     C[s, i, j] = iters * A[i] * B[j]    for each subgroup s
//
//     a  (TILES_A, MAT_M, MAT_K)               T or int8, the same for all subgroups
//     b  (TILES_B, MAT_K, MAT_N)               T
//     c  (subgroups, TILES_A, TILES_B, MAT_M, MAT_N)  f32
//
// Sums of int8 are integers of 32 bits until they are stored.
//
// Nothing is loaded or stored in the loop. The products of a step do not depend on each other.
//
// Dispatch: (workgroups, 1, 1) of full subgroups.
#version 460
#extension GL_EXT_control_flow_attributes : require
#include "lib/matrix_extensions.glsl"

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint MAT_M = 16;
layout(constant_id = 2) const uint MAT_N = 16;
layout(constant_id = 3) const uint MAT_K = 16;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint iters;
} p;

#ifdef ELEM_INT8
#extension GL_EXT_shader_16bit_storage : require
#define T int8_t
#define SUM int32_t
#define CELLS(n) ((n) / 2)  // of 16 bits
#define TO_FLOAT(x) coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>(x)
#else
#include "lib/element.glsl"
#define SUM float
#define CELLS(n) (n)
#define TO_FLOAT(x) (x)
#endif

layout(binding = 0, scalar) readonly buffer A { uint16_t a[]; };
layout(binding = 1, scalar) readonly buffer B { uint16_t b[]; };
layout(binding = 2, scalar) writeonly buffer C { float c[]; };

// 2 x 4 tiles of 16 x 16 take 64 registers of 32 invocations for C, and enough
// products are in flight to hide the latency of one.
const uint TILES_A = 2;
const uint TILES_B = 4;

#define MatA coopmat<T, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA>
#define MatB coopmat<T, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB>
#define MatC coopmat<SUM, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>

void main() {
    MatA left[TILES_A];
    MatB right[TILES_B];
    MatC sum[TILES_A * TILES_B];
    [[unroll]] for (uint i = 0; i < TILES_A; i++) {
        coopMatLoad(left[i], a, CELLS(i * MAT_M * MAT_K), CELLS(MAT_K), gl_CooperativeMatrixLayoutRowMajor);
    }
    [[unroll]] for (uint j = 0; j < TILES_B; j++) {
        coopMatLoad(right[j], b, CELLS(j * MAT_K * MAT_N), CELLS(MAT_N), gl_CooperativeMatrixLayoutRowMajor);
    }
    [[unroll]] for (uint k = 0; k < TILES_A * TILES_B; k++) {
        sum[k] = MatC(SUM(0.0));
    }
    for (uint t = 0; t < p.iters; t++) {
        [[unroll]] for (uint i = 0; i < TILES_A; i++) {
            [[unroll]] for (uint j = 0; j < TILES_B; j++) {
                sum[i * TILES_B + j] = coopMatMulAdd(left[i], right[j], sum[i * TILES_B + j]);
            }
        }
    }
    const uint subgroup = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
    const uint base = subgroup * TILES_A * TILES_B * MAT_M * MAT_N;
    [[unroll]] for (uint k = 0; k < TILES_A * TILES_B; k++) {
        coopMatStore(TO_FLOAT(sum[k]), c, base + k * MAT_M * MAT_N, MAT_N, gl_CooperativeMatrixLayoutRowMajor);
    }
}
