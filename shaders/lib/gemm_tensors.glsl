// gemm_tensors: the parameters and tensors of the GEMM kernels on matrices, and their matrices.
#include "element.glsl"
#include "formats.glsl"
#include "gemm_params.glsl"

layout(binding = 0, scalar) readonly buffer A { uvec4 a8[]; };
layout(binding = 1, scalar) readonly buffer B { uvec4 b8[]; };
#define OUT_BINDING 2
#include "gemm_out.glsl"
#include "matrix_types.glsl"
