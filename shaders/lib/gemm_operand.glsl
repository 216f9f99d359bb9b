// gemm_operand: the way of A and B from memory through registers into shared memory.
//
// A workgroup computes a block of BLOCK_M x BLOCK_N of C from slabs of BLOCK_K
// columns of op(A) and as many rows of op(B). Shared memory holds a slab as memory
// does, in lines along the axis that is contiguous:
//
//     op(A) = A    (A_BY_K)    BLOCK_M lines of BLOCK_K elements
//     op(A) = A^T              BLOCK_K lines of BLOCK_M
//     op(B) = B^T  (B_BY_K)    BLOCK_N lines of BLOCK_K
//     op(B) = B                BLOCK_K lines of BLOCK_N
//
// and matrices are loaded by rows or by columns. With two buffers lines along k hold
// those of both slabs, side by side; the others follow each other.
//
// What is outside op(A) and op(B) along k is zero, also where memory holds a NaN.
// Along m and n it repeats the last line or is whatever lies beyond a line: it gets
// into elements of the block that are outside C. No load leaves the aligned 16
// bytes around an element of the tensor.
//
// The functions take the operand as a constant, IS_A, or else it is B. The includer
// declares the specialization constants named here and the push constants, binds
// the tensors as `uvec4 a8[]` and `uvec4 b8[]`, and includes lib/copies.glsl and
// lib/load8_shift.glsl.
#ifndef LIB_GEMM_OPERAND_GLSL
#define LIB_GEMM_OPERAND_GLSL

const uint A_LINES = A_BY_K ? BLOCK_M : BLOCK_K;
const uint B_LINES = B_BY_K ? BLOCK_N : BLOCK_K;
const uint A_LINE8 = (A_BY_K ? BLOCK_K : BLOCK_M) / 8;  // uvec4 of a line
const uint B_LINE8 = (B_BY_K ? BLOCK_K : BLOCK_N) / 8;
const uint A_LD = (A_BY_K ? BUFFERS : 1) * A_LINE8 + 1;  // one more, so that lines start in different banks
const uint B_LD = (B_BY_K ? BUFFERS : 1) * B_LINE8 + 1;
const uint A_NEXT = A_BY_K ? A_LINE8 : A_LINES * A_LD;  // uvec4 from one buffer to the next
const uint B_NEXT = B_BY_K ? B_LINE8 : B_LINES * B_LD;
const uint A_COPIES = (A_LINES * A_LINE8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint B_COPIES = (B_LINES * B_LINE8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
const uint A_WORDS = A_ALIGNED ? 1 : 2;  // uvec4 that are loaded for a copy
const uint B_WORDS = B_ALIGNED ? 1 : 2;
const uint B_AT = (A_BY_K ? 1 : BUFFERS) * A_LINES * A_LD;  // where B begins
const uint OPERANDS_SIZE = B_AT + (B_BY_K ? 1 : BUFFERS) * B_LINES * B_LD;  // uvec4

// An operand of one product, as a workgroup sees it.
struct Operand {
    uint base;    // element where it begins
    uint stride;  // elements from line to line
    uint size;    // rows of op(A), columns of op(B)
    uint first;   // of which the block begins here
};

// A piece is eight elements of a line.
struct Piece {
    uint line;  // element where the line begins
    uint col;   // within the line
    uint len;   // elements of the line
};

// line_of returns the line of copy number i. Eight invocations, which store 128 bytes at
// once, have lines that begin in different banks, and those of a subgroup have
// neighbouring lines, for the loads: of lines of four uvec4 0, 4, 1, 5, 2, 6, 3, 7.
uint line_of(const uint i, const uint line8) {
    const uint line = row_of_copy(i, line8);
    if (line8 != 2 && line8 != 4) {
        return line;
    }
    const uint together = 8 / line8;
    return line - line % 8 + line % together * line8 + line % 8 / together;
}

Piece piece_of(const bool IS_A, const Operand o, const uint k0, const uint i) {
    const uint line = line_of(i, IS_A ? A_LINE8 : B_LINE8);
    const uint col = col_of_copy(i, IS_A ? A_LINE8 : B_LINE8) * 8;
    if (IS_A ? A_BY_K : B_BY_K) {
        return Piece(o.base + min(o.first + line, o.size - 1) * o.stride, k0 + col, p.k);
    }
    return Piece(o.base + min(k0 + line, p.k - 1) * o.stride, o.first + col, o.size);
}

// fetch returns the aligned words that hold copy number i of the slab at k0, for an
// unaligned operand in two calls.
uvec4 fetch(const bool IS_A, const Operand o, const uint k0, const uint i, const uint word) {
    const Piece x = piece_of(IS_A, o, k0, i);
    // Where lines are aligned, the last piece may hang over the end of the line.
    const uint last = (IS_A ? A_ALIGNED : B_ALIGNED) ? (x.len - 1) & ~7u : x.len - 1;
    const uint at = (x.line + min(x.col + 7 * word, last)) >> 3;
    if (IS_A) {
        return a8[at];
    }
    return b8[at];
}

// select returns copy number i from its words: elements from end_k on are zero.
uvec4 select(const bool IS_A, const Operand o, const uint k0, const uint end_k, const uint i, const uvec4 lo, const uvec4 hi) {
    uvec4 x = lo;
    if (!(IS_A ? A_ALIGNED : B_ALIGNED)) {
        x = shift8(lo, hi, piece_of(IS_A, o, k0, i).line & 7);
    }
    if (k0 + BLOCK_K > end_k) {
        const uint line = line_of(i, IS_A ? A_LINE8 : B_LINE8);
        const uint col = col_of_copy(i, IS_A ? A_LINE8 : B_LINE8) * 8;
        const int left = int(end_k) - int(k0);
        x = keep8(x, (IS_A ? A_BY_K : B_BY_K) ? left - int(col) : int(line) < left ? 8 : 0);
    }
    return x;
}

#endif
