// matrix_types: the cooperative matrices of one subgroup.
//
// The includer has the element type T of lib/element.glsl and the
// specialization constants MAT_M and MAT_N: the device's product
//
//     (MAT_M, MAT_N) x (MAT_N, MAT_N) + (MAT_M, MAT_N)
//
// Its N and K are one constant: P leaves the first product of attention as an
// accumulator and enters the second as the left matrix.

#define MatA coopmat<T, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseA>
#define MatB coopmat<T, gl_ScopeSubgroup, MAT_N, MAT_N, gl_MatrixUseB>
#define MatC coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>

#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor
