// rows_coopmat2: the functions of lib/rows_coopmat.glsl, by the operations of
// VK_NV_cooperative_matrix2.
//
// Every invocation of the subgroup reaches a call.

float op_max(const in float a, const in float b) { return max(a, b); }
float op_add(const in float a, const in float b) { return a + b; }

float elem_index(const in uint32_t row, const in uint32_t col, const in float unused) {
    return float(row * MAT_N + col);
}

// reduce_matrix gives every element of x the maximum (or with SUM the sum) of its row.
MatC reduce_matrix(const MatC x, const bool SUM) {
    MatC result;
    if (SUM) {
        coopMatReduceNV(result, x, gl_CooperativeMatrixReduceRowNV, op_add);
    } else {
        coopMatReduceNV(result, x, gl_CooperativeMatrixReduceRowNV, op_max);
    }
    return result;
}

// element_index returns the matrix whose element (row, col) is row * MAT_N + col.
MatC element_index() {
    MatC c = MatC(0.0);
    coopMatPerElementNV(c, c, elem_index);
    return c;
}

// to_left returns x in the storage format, as a left matrix; with WEIGHT, x is
// a matrix of softmax weights.
MatA to_left(const MatC x, const bool WEIGHT) {
    if (SAME_LAYOUT) {
        return copy_to_left(x, WEIGHT);
    }
    MatC y = x;
    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
        y[i] = ROUND_TO_T(y[i]);
    }
    return MatA(y);
}
