// bwd_tensors: the tensors that backward kernels on matrices load, and the lengths of
// their rows.
//
// The includer includes lib/tile_shape.glsl.

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
