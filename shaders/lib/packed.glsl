// packed: matrices in the order of the invocations' registers: the eight elements of each
// invocation as a uvec4.
//
//     left_matrix(x), right_matrix(x)   the matrix whose elements an invocation has in x
//     left_words(m), right_words(m)     the reverse
//
// The device decides which invocation holds which element, but the layout is the same in
// every kernel. So one kernel may store the elements of a matrix, and another may load them
// into a matrix of the same type, without knowing which elements they are. In device or shared
// memory a packed matrix is subgroup size x 16 consecutive bytes: one load per invocation, without
// bank conflicts. An operand of 16 x 16 that is loaded by rows takes four loads on NVIDIA.
//
// The includer includes lib/element.glsl, with a 16-bit format, and lib/matrix_types.glsl.
// Matrices have eight elements for each invocation, and MAT_M = MAT_N.
#extension GL_EXT_control_flow_attributes : require

#include "two.glsl"

#define DEFINE_PACKED(Matrix, matrix, words)                 \
    Matrix matrix(const uvec4 x) {                           \
        Matrix m;                                            \
        [[unroll]] for (uint i = 0; i < 4; i++) {            \
            const TwoT two = TWO_FROM(x[i]);                 \
            m[2 * i] = two.x;                                \
            m[2 * i + 1] = two.y;                            \
        }                                                    \
        return m;                                            \
    }                                                        \
    uvec4 words(const Matrix m) {                            \
        uvec4 x;                                             \
        [[unroll]] for (uint i = 0; i < 4; i++) {            \
            x[i] = WORD_FROM(TwoT(m[2 * i], m[2 * i + 1]));  \
        }                                                    \
        return x;                                            \
    }

DEFINE_PACKED(MatA, left_matrix, left_words)
DEFINE_PACKED(MatB, right_matrix, right_words)
