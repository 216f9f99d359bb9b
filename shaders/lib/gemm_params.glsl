// gemm_params: the push constants of the GEMM kernels, and the specialization
// constants of their epilogue (activations, bias, residual; lib/gemm_epilogue.glsl).
//
//     v = alpha * sum + beta * C + bias  beta * C with READ_C, bias with BIAS
//     X = v                              with KEEP_X
//     v = a(v)                           a is ACTIVATION
//     v = v * a'(X)                      instead, with TIMES_SLOPE
//     S = a(X)                           with KEEP_S
//     C = v + R                          R with RESIDUAL
//
// C, R, X and S are (batch, m, n) of one format, OUT_FORMAT. The bias, of OUT_FORMAT or float32, is
// in place of S: s_stride is 0.
//
// With GROUP a launch computes many products of different sizes, each with a batch of 1. A
// table has one row of these parameters per product; p is a copy of the workgroup's row.
//
// The includer defines EPILOGUE_ID, the constant_id of the first of the constants, and with
// GROUP the binding of the table, GROUP_BINDING.

layout(constant_id = EPILOGUE_ID) const uint OUT_FORMAT = 0;  // FORMAT_F32, FORMAT_F16 or FORMAT_BF16
layout(constant_id = EPILOGUE_ID + 1) const bool OUT_ALIGNED = true;  // offsets and strides of C, R, X and S are multiples of 4
layout(constant_id = EPILOGUE_ID + 2) const bool READ_C = false;
layout(constant_id = EPILOGUE_ID + 3) const bool RESIDUAL = false;
layout(constant_id = EPILOGUE_ID + 4) const uint ACTIVATION = 0;  // 0: none
layout(constant_id = EPILOGUE_ID + 5) const bool KEEP_X = false;
layout(constant_id = EPILOGUE_ID + 6) const bool TIMES_SLOPE = false;
layout(constant_id = EPILOGUE_ID + 7) const uint S_HOLDS = 0;  // 0: nothing, 1: S, 2: a bias of OUT_FORMAT, 3: of float32
layout(constant_id = EPILOGUE_ID + 8) const bool SCALED = true;  // alpha is not 1

const uint SILU = 1;  // values of ACTIVATION
const uint GELU = 2;
const uint GELU_TANH = 3;

const bool KEEP_S = S_HOLDS == 1;
const bool BIAS = S_HOLDS > 1;
const uint BIAS_FORMAT = S_HOLDS == 3 ? 0 : OUT_FORMAT;  // 0: FORMAT_F32

#define WORKGROUP_ID (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x)

// Where a matrix lies: its first element, and the distance from a batch and from a row to the next.
#define MATRIX(x) uint x##_offset; uint x##_stride_b; uint x##_stride;

// ROW_AT is where a row of a batch begins.
#define ROW_AT(x, batch, row) (p.x##_offset + (batch) * p.x##_stride_b + (row) * p.x##_stride)

#ifdef GROUP
struct Product {
#else
layout(push_constant, scalar) uniform Params {
#endif
    uint m;
    uint n;
    uint k;
    uint split_k;  // k of one split, a multiple of BLOCK_K
    uint splits;
    uint tiles;    // blocks of one product
    float alpha;
    float beta;
    MATRIX(a)  // elements, like all that follow
    MATRIX(b)
    MATRIX(c)
    MATRIX(r)
    MATRIX(x)
    MATRIX(s)
#ifndef GROUP
} p;

#define BLOCK_ID WORKGROUP_ID  // block of the product
#define A_SIZE p.m             // rows of op(A) in memory
#define B_SIZE p.n             // columns of op(B) in memory
#define READS_C READ_C         // the product reads C
#else
    uint first;      // block of the product, among the blocks of all products
    uint a_size;     // m, or 1 where k is 0 for split_k: no element is in memory, and k is 1 for addresses
    uint b_size;     // likewise n
    uint unused[3];  // so that a row is 128 bytes, as a line of a cache is
};

layout(push_constant, scalar) uniform Params {
    uint row;       // where the table begins
    uint products;  // that it has, by first
} group;

layout(binding = GROUP_BINDING, scalar) readonly buffer Table { Product rows[]; } table;

// row_of returns the row of the product that has a block: the last one that begins no later.
uint row_of(const uint id) {
    uint low = group.row;
    uint high = group.row + group.products;
    while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (table.rows[middle].first <= id) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

Product p = table.rows[row_of(WORKGROUP_ID)];

#define BLOCK_ID (WORKGROUP_ID - p.first)
#define A_SIZE p.a_size
#define B_SIZE p.b_size
#define READS_C (READ_C && p.beta != 0.0)
#endif

vec4 scaled(const vec4 sum) { return SCALED ? p.alpha * sum : sum; }
