// gemm_operand: the way of A and B from memory through registers into shared memory.
//
// A workgroup computes a block of BLOCK_M x BLOCK_N of C from k-tiles of BLOCK_K
// columns of op(A) and as many rows of op(B). Shared memory holds a k-tile in the order of
// memory, in lines along the contiguous axis:
//
//     op(A) = A    (A_BY_K)    BLOCK_M lines of BLOCK_K elements
//     op(A) = A^T              BLOCK_K lines of BLOCK_M
//     op(B) = B^T  (B_BY_K)    BLOCK_N lines of BLOCK_K
//     op(B) = B                BLOCK_K lines of BLOCK_N
//
// and matrices are loaded by rows or by columns.
//
// An invocation moves pieces of eight elements. The place of a piece in a k-tile is the same
// for all k-tiles. So is the place of its first element within the aligned 16 bytes that hold
// it, because BLOCK_K is a multiple of 8. The loop over the k-tiles therefore adds one number,
// the same for all, to each address. A partial k-tile at the end of k is a separate case.
//
// Elements outside op(A) and op(B) along k are zero, also where memory holds a NaN. Along m and n
// they repeat the last line, or are whatever lies beyond a line; they affect only elements of the
// block outside C. No load leaves the aligned 16 bytes around an element of the tensor.
//
// The functions take the operand as a constant, IS_A, or else it is B. The includer declares the
// specialization constants named here and the push constants, binds the tensors as `uvec4 a8[]` and
// `uvec4 b8[]`, and includes lib/copies.glsl and lib/load8_shift.glsl. If operands may be panels of
// parts (lib/gemm_panels.glsl), it defines F32X2_ID, the constant_id of F32X2.

#ifdef F32X2_ID
layout(constant_id = F32X2_ID) const bool F32X2 = false;
#else
const bool F32X2 = false;
#endif
const uint DEPTH = F32X2 ? BLOCK_K / 2 : BLOCK_K;  // columns of op(A) in a k-tile

const uint A_LINES = A_BY_K ? BLOCK_M : BLOCK_K;
const uint B_LINES = B_BY_K ? BLOCK_N : BLOCK_K;
const uint A_LINE8 = (A_BY_K ? BLOCK_K : BLOCK_M) / 8;  // uvec4 of a line
const uint B_LINE8 = (B_BY_K ? BLOCK_K : BLOCK_N) / 8;
const uint A_LD = A_LINE8 + 1;  // one more, so that lines start in different banks
const uint B_LD = B_LINE8 + 1;
const uint A_COPIES = (A_LINES * A_LINE8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint B_COPIES = (B_LINES * B_LINE8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint A_WORDS = A_ALIGNED ? 1 : 2;  // uvec4 that are loaded for a copy
const uint B_WORDS = B_ALIGNED ? 1 : 2;
const uint B_AT = A_LINES * A_LD;                   // where B begins
#ifdef PACKED  // lib/gemm_matrix.glsl
const uint OPERANDS_SIZE = B_AT;  // uvec4
#else
const uint OPERANDS_SIZE = B_AT + B_LINES * B_LD;  // uvec4
#endif

// An operand of one product, as a workgroup sees it.
struct Operand {
    uint base;    // element where it begins
    uint stride;  // elements from line to line; with F32X2 lines of a panel
    uint size;    // rows of op(A), columns of op(B)
    uint first;   // of which the block begins here
};

// A piece is eight elements of a line.
struct Piece {
    uint line;  // element where the line begins
    uint col;   // within the line
    uint len;   // elements of the line
};

// line_of returns the line of copy number i. Eight invocations store 128 bytes at once, so
// their lines begin in different banks. The invocations of a subgroup have neighbouring
// lines, for the loads: for lines of four uvec4 0, 4, 1, 5, 2, 6, 3, 7.
uint line_of(const uint i, const uint line8) {
    const uint line = row_of_copy(i, line8);
    if (line8 != 2 && line8 != 4) {
        return line;
    }
    const uint together = 8 / line8;
    return line - line % 8 + line % together * line8 + line % 8 / together;
}

uint line8_of(const bool IS_A) { return IS_A ? A_LINE8 : B_LINE8; }
bool by_k(const bool IS_A) { return IS_A ? A_BY_K : B_BY_K; }
bool is_aligned(const bool IS_A) { return IS_A ? A_ALIGNED : B_ALIGNED; }

Piece piece_of(const bool IS_A, const Operand o, const uint k0, const uint i) {
    const uint line = line_of(i, line8_of(IS_A));
    const uint col = col_of_copy(i, line8_of(IS_A)) * 8;
    if (by_k(IS_A)) {
        return Piece(o.base + min(o.first + line, o.size - 1) * (F32X2 ? BLOCK_K : o.stride), k0 + col, p.k);
    }
    return Piece(o.base + min(k0 + line, p.k - 1) * o.stride, o.first + col, o.size);
}

// place returns which aligned uvec4 holds the first element of copy number i of the k-tile
// at k0, or with word = 1 the last one.
uint place(const bool IS_A, const Operand o, const uint k0, const uint i, const uint word) {
    const Piece x = piece_of(IS_A, o, k0, i);
    // Where lines are aligned, the last piece may hang over the end of the line.
    const uint last = is_aligned(IS_A) ? (x.len - 1) & ~7u : x.len - 1;
    return (x.line + min(x.col + 7 * word, last)) >> 3;
}

// step_to returns the step from the places of the k-tile at 0 to the places of the k-tile at k0.
uint step_to(const bool IS_A, const Operand o, const uint k0) {
    return k0 / 8 * (by_k(IS_A) && !F32X2 ? 1 : o.stride);
}

uvec4 fetch(const bool IS_A, const uint at) {
    if (IS_A) {
        return a8[at];
    }
    return b8[at];
}

// phase returns where the first element of copy number i is within its uvec4. Where rounds
// of the workgroup are 8 lines apart, it is the same for all copies of an invocation.
uint phase(const bool IS_A, const Operand o, const uint i) {
    const bool SAME = WORKGROUP_SIZE % line8_of(IS_A) == 0 && WORKGROUP_SIZE / line8_of(IS_A) % 8 == 0;
    const uint line = line_of(SAME ? 0 : i, line8_of(IS_A));
    return o.base + (by_k(IS_A) ? o.first + line : line) * o.stride & 7;
}

// piece returns copy number i from its words.
uvec4 piece(const bool IS_A, const Operand o, const uint i, const uvec4 lo, const uvec4 hi) {
    return is_aligned(IS_A) ? lo : shift8(lo, hi, phase(IS_A, o, i));
}

// cut returns a word of copy number i of a k-tile that ends after left of its columns.
uvec4 cut(const bool IS_A, const Operand o, const int left, const uint i, const uint word, const uvec4 x) {
    const uint line = line_of(i, line8_of(IS_A));
    const uint col = col_of_copy(i, line8_of(IS_A)) * 8;
    if (!by_k(IS_A)) {
        return x & (int(line) < left ? ~0u : 0u);
    }
    const uint before = is_aligned(IS_A) ? 0 : phase(IS_A, o, i);  // elements of the words before the piece
    return keep8(x, left - int(col) + int(before) - int(8 * word));
}
