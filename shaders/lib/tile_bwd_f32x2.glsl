// tile_bwd_f32x2: lib/tile_bwd.glsl for float32 tensors on matrices of float16, with the errors of
// float32. The same functions, by the arithmetic of lib/fwd_f32x2.glsl: every operand is two
// float16, hi + lo (lib/f32x2.glsl), and a product is three, hi*hi + (hi*lo + lo*hi). Who calls
// them is lib/bwd_dkv_matrix.glsl or lib/bwd_dq_matrix.glsl; the argument that only these functions
// use is an exponent, or the largest magnitudes that it follows from.
//
// What has an exponent of its own:
//
//     rows that the workgroup owns    each row
//     a tile                          all of it, each tensor
//     P                               none: weights are 1 at most
//     dX                              each row of a matrix of them
//
// The magnitude of dX is not bounded, so its exponent comes from its largest element. An
// element below 2^-16 of the largest with the same exponent has an absolute error of 2^-39 of
// that largest instead of a relative error; for P it is 2^-40.
//
// A float32 addition adds the sum over MAT_N rows or keys to gradients, because of the
// exponents and because matrix units may cut off a sum's last bit (lib/fwd_f32x2.glsl).
//
//     tile rows 0         .. BLOCK_N - 1    of Q, or of K:  hi
//               BLOCK_N   .. 2*BLOCK_N - 1  of dO, or of V: hi
//               2*BLOCK_N .. 4*BLOCK_N - 1  both again:     lo
//
// The includer declares the specialization constants named here, the push constants, the
// buffers' q1, k1, v1 and do1 of float, and load_q, load_k, load_v, load_do, put_dx and
// put_dv (lib/f32x2.glsl).

#include "tile_shape.glsl"

const uint TILE_SIZE = 4 * BLOCK_N * LD;
const uint LO = 2 * BLOCK_N * LD;  // from an element's hi to its lo

shared uvec4 tile[TILE_SIZE];

#include "tile_amax.glsl"
#include "float_tile.glsl"

#define COPY Elems8  // as in lib/tile_bwd.glsl

// SHARE_AMAX shares the exponents of a tile of whose tensors these are the copies, before a barrier.
#define SHARE_AMAX(first, second)                            \
    float first_amax = 0.0;                                  \
    float second_amax = 0.0;                                 \
    [[unroll]] for (uint i = 0; i < COPIES; i++) {           \
        first_amax = max(first_amax, largest(first[i]));     \
        second_amax = max(second_amax, largest(second[i]));  \
    }                                                        \
    share_amax(first_amax, second_amax);

#include "bwd_tensors.glsl"

float load_element(const uint tensor, const uint i) {
    switch (tensor) {
        case TENSOR_Q: return q1[i];
        case TENSOR_K: return k1[i];
        case TENSOR_V: return v1[i];
    }
    return do1[i];
}

Elems8 fetch(const uint tensor, const uint base, const uint ld, const uint i, const uint last) {
    const uint col = copy_col(i);
    if (!copies(i) || !HAS_COLUMN(tensor, col)) {
        return Elems8(vec4(0.0), vec4(0.0));
    }
    return load_tensor(tensor, base + min(copy_row(i), last) * ld + col * 8);
}

// put stores the parts of copy number i of both tensors of a tile, whose exponents are given.
void put(const uint i, const Elems8 first, const Elems8 second, const uvec2 exponents) {
    if (copies(i)) {
        const uint at = copy_row(i) * LD + copy_col(i);
        const Parts8 a = split(first, scale_of(exponents.x));
        const Parts8 b = split(second, scale_of(exponents.y));
        tile[at] = a.hi;
        tile[at + BLOCK_N * LD] = b.hi;
        tile[at + LO] = a.lo;
        tile[at + BLOCK_N * LD + LO] = b.lo;
    }
}

#ifdef FEATURES
#define FULL_ROWS false
const uint GRADIENT_STAGES = (WIDE_TILES + FLOAT_TILES - 1) / FLOAT_TILES;
#else
#define FULL_ROWS HEAD_DIM % MAT_N == 0
#define GRADIENT_STAGES FLOAT_STAGES
#endif

struct Owned {
    MatA hi[ROW_TILES * WIDE_TILES];  // (SUBGROUP_ROWS, head_dim)
    MatA lo[ROW_TILES * WIDE_TILES];
    uint exponent[ROW_TILES * ROWS];
};
struct Left {
    MatA hi[ROW_TILES];  // (SUBGROUP_ROWS, MAT_N)
    MatA lo[ROW_TILES];
    uint exponent[ROW_TILES * ROWS];
};

// fold returns what a product of parts with these exponents is multiplied by.
float fold(const uint a, const uint b) {
    return uintBitsToFloat(uint(clamp(int(a + b) - int(FLOAT_BIAS + 2 * TOP), 0, 254)) << 23);  // 0 where it is below 2^-126
}

void load_owned(out Owned own, const uint tensor, const uint base, const uint ld, const uint last) {
    const MatC index = element_index();
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC x[WIDE_TILES];
        MatC top;  // largest magnitude of the rows, then their scale
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M + uint(index[i * ROW_RUN]) / MAT_N;
            top[i] = 0.0;
            [[unroll]] for (uint d = 0; d < WIDE_TILES; d++) {
                [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                    const uint col = d * MAT_N + uint(index[e]) % MAT_N;
                    const bool inside = FULL_ROWS || col < DIM_OF(tensor);
                    x[d][e] = inside ? load_element(tensor, base + min(row, last) * ld + col) : 0.0;
                    top[i] = max(top[i], abs(x[d][e]));
                }
            }
        }
        top = reduce(top, false);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            own.exponent[r * ROWS + i] = exponent_of(floatBitsToUint(top[i]));
            top[i] = scale_of(own.exponent[r * ROWS + i]);
        }
        [[unroll]] for (uint d = 0; d < WIDE_TILES; d++) {
            MatC hi, lo;
            [[unroll]] for (uint e = 0; e < LENGTH; e++) {
                const float y = x[d][e] * top[e / ROW_RUN];
                hi[e] = round_to_hi(y);
                lo[e] = y - hi[e];
            }
            own.hi[r * WIDE_TILES + d] = to_left(hi, true);
            own.lo[r * WIDE_TILES + d] = to_left(lo, false);
        }
    }
}

// row_amax returns the largest magnitudes of the rows of x, as reduce does.
MatC row_amax(const MatC x) {
    MatC top;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        top[i] = 0.0;
        [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
            top[i] = max(top[i], abs(x[e]));
        }
    }
    return reduce(top, false);
}

// weight_amax stands for the largest magnitudes of P. LSE, rounded, may let a weight be a little above 1;
// parts hold up to 4.
MatC weight_amax() { return MatC(1.0); }

// set_left makes x row r of left matrices, the largest magnitudes of whose rows are given.
void set_left(inout Left left, const uint r, const MatC x, const MatC top) {
    MatC hi, lo;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint exponent = exponent_of(floatBitsToUint(top[i]));
        const float scale = scale_of(exponent);
        [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
            const float y = x[e] * scale;
            hi[e] = round_to_hi(y);
            lo[e] = y - hi[e];
        }
        left.exponent[r * ROWS + i] = exponent;
    }
    left.hi[r] = to_left(hi, true);
    left.lo[r] = to_left(lo, false);
}

void product(inout Weights S, const Owned own, const uint row, const uint exponent) {
    Weights sum;    // hi*hi
    Weights small;  // hi*lo + lo*hi
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        sum.at[r] = MatC(0.0);
        small.at[r] = MatC(0.0);
    }
    [[unroll]] for (uint d = 0; d < WIDE_TILES; d++) {
        fence(d);
        MatB hi, lo;  // a row-major tile read by columns
        const uint at = row * LD + d * (MAT_N / 8);
        coopMatLoad(hi, tile, at, LD, COLUMN_MAJOR);
        coopMatLoad(lo, tile, at + LO, LD, COLUMN_MAJOR);
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            sum.at[r] = coopMatMulAdd(own.hi[r * WIDE_TILES + d], hi, sum.at[r]);
            small.at[r] = coopMatMulAdd(own.hi[r * WIDE_TILES + d], lo, small.at[r]);
            small.at[r] = coopMatMulAdd(own.lo[r * WIDE_TILES + d], hi, small.at[r]);
        }
    }
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
            S.at[r][i] += (sum.at[r][i] + small.at[r][i]) * fold(own.exponent[r * ROWS + i / ROW_RUN], exponent);
        }
    }
}

void accumulate(inout Gradient g, const Left weights, const uint row, const uint exponent) {
    [[unroll]] for (uint d = 0; d < WIDE_TILES; d++) {
        fence(d);
        MatB hi, lo;
        const uint at = row * LD + d * (MAT_N / 8);
        coopMatLoad(hi, tile, at, LD, ROW_MAJOR);
        coopMatLoad(lo, tile, at + LO, LD, ROW_MAJOR);
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            MatC sum = coopMatMulAdd(weights.hi[r], lo, MatC(0.0));
            sum = coopMatMulAdd(weights.lo[r], hi, sum);
            sum = coopMatMulAdd(weights.hi[r], hi, sum);
            [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                g.at[r * WIDE_TILES + d][i] += sum[i] * fold(weights.exponent[r * ROWS + i / ROW_RUN], exponent);
            }
        }
    }
}

void store_gradient(const Gradient g, const float scale, const bool TO_DV, const uint base, const uint ld, const uint last) {
    [[unroll]] for (uint stage = 0; stage < GRADIENT_STAGES; stage++) {
        barrier();  // the last tile, or the columns before, are read
        [[unroll]] for (uint e = 0; e < FLOAT_TILES; e++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                if (stage * FLOAT_TILES + e < WIDE_TILES) {
                    coopMatStore(g.at[r * WIDE_TILES + stage * FLOAT_TILES + e] * scale, tile,
                                 float_at(gl_SubgroupID * SUBGROUP_ROWS + r * MAT_M, e), FLOAT_LD, ROW_MAJOR);
                }
            }
        }
        barrier();  // tile written before it is read
        [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < BLOCK_M * FLOAT_ROW4; i += WORKGROUP_SIZE) {
            const uint row = i / FLOAT_ROW4;
            const uint col = stage * FLOAT_TILES * MAT_N + i % FLOAT_ROW4 * 4;
            if (row <= last && col < DIM_OF(TO_DV ? TENSOR_V : TENSOR_K)) {
                const uint at = base + row * ld + col;
                const vec4 x = uintBitsToFloat(tile[row * FLOAT_LD + i % FLOAT_ROW4]);
                if (TO_DV) {
                    put_dv(at, x);
                } else {
                    put_dx(at, x);
                }
            }
        }
    }
}
