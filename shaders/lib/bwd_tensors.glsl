// bwd_tensors: the tensors that backward kernels on matrices load, the lengths of their rows, and what
// both lib/tile_bwd.glsl and lib/tile_bwd_f32x2.glsl, which include it, compute.

const uint TENSOR_Q = 0;
const uint TENSOR_K = 1;
const uint TENSOR_V = 2;
const uint TENSOR_DO = 3;

// DIM_OF is the length of rows, HAS_COLUMN says whether they have column `col`, in uvec4.
#ifdef FEATURES
#define DIM_OF(tensor) ((tensor) == TENSOR_V || (tensor) == TENSOR_DO ? VALUE_DIM : HEAD_DIM)
#define HAS_COLUMN(tensor, col) ((tensor) == TENSOR_V || (tensor) == TENSOR_DO ? copies_value(col) : copies_dim(col))
#else
#define DIM_OF(tensor) HEAD_DIM
#define HAS_COLUMN(tensor, col) copies_dim(col)
#endif

// load_tensor returns elements i to i+7 of a tensor, which the compiler knows.
COPY load_tensor(const uint tensor, const uint i) {
    switch (tensor) {
        case TENSOR_Q: return load_q(i);
        case TENSOR_K: return load_k(i);
        case TENSOR_V: return load_v(i);
    }
    return load_do(i);
}

// A gradient of the rows of a subgroup, and one column of matrices of scores or weights; structs, as
// arrays sized by specialization constants do not match as arguments.
struct Gradient { MatC at[ROW_TILES * WIDE_TILES]; };  // (SUBGROUP_ROWS, head_dim)
struct Weights { MatC at[ROW_TILES]; };  // (SUBGROUP_ROWS, MAT_N)
