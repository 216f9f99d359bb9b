// attention_fwd_coopmat: fused attention forward on the cooperative matrices of
// VK_KHR_cooperative_matrix alone.
//
//     S   = Scale * Q * K^T
//     P   = softmax(S) over the keys that a row sees
//     O   = P * V
//     LSE = log(sum(exp(S))) of each row
//
//     q, o  (batch, num_heads, seq_q, head_dim)      ELEM, any strides, last axis contiguous
//     k, v  (batch, num_kv_heads, seq_kv, head_dim)  ELEM, likewise
//     lse   (batch, num_heads, seq_q)                f32, last axis contiguous
//
// The algorithm is that of attention_fwd_coopmat2. Where an element's row or
// column matters, the matrix takes a detour through shared memory
// (lib/rows_coopmat.glsl); lazy rescaling makes that rare: the test for a grown
// maximum is element by element, as m is kept in matrix form.
//
// P must turn from an accumulator into a left matrix. KHR has no conversion
// between uses, but on most devices both hold their elements in the same order
// (matrix_layout.comp finds out): SAME_LAYOUT copies element by element,
// otherwise P goes through scratch.
//
// Dispatch: (ceil(seq_q / BLOCK_M), num_heads, batch).
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_bfloat16 : enable
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_cooperative_matrix : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint NUM_SUBGROUPS = 4;
layout(constant_id = 2) const uint MAT_M = 16;
layout(constant_id = 3) const uint MAT_N = 16;
layout(constant_id = 4) const uint ROW_TILES = 1;  // matrix rows of tiles per subgroup
layout(constant_id = 5) const uint BLOCK_N = 64;
layout(constant_id = 6) const uint HEAD_DIM = 64;
layout(constant_id = 7) const bool CAUSAL = false;
layout(constant_id = 8) const bool ALIGNED = true;    // offsets and strides are multiples of 8
layout(constant_id = 9) const bool WRITE_LSE = true;
layout(constant_id = 10) const bool PREFETCH = true;  // next key tile waits in registers
layout(constant_id = 11) const bool SAME_LAYOUT = true;  // of accumulators and left matrices
layout(constant_id = 12) const bool LOCKSTEP = false;    // see lib/rows_coopmat.glsl
layout(local_size_x_id = 0) in;

#include "lib/element.glsl"
#include "lib/params_fwd.glsl"

layout(binding = 0, scalar) readonly buffer Q { uvec4 q8[]; };
layout(binding = 0, scalar) readonly buffer Q16 { uint16_t q16[]; };
layout(binding = 1, scalar) readonly buffer K { uvec4 k8[]; };
layout(binding = 1, scalar) readonly buffer K16 { uint16_t k16[]; };
layout(binding = 2, scalar) readonly buffer V { uvec4 v8[]; };
layout(binding = 2, scalar) readonly buffer V16 { uint16_t v16[]; };
layout(binding = 3, scalar) writeonly buffer O { uvec4 o8[]; };
layout(binding = 3, scalar) writeonly buffer O16 { uint16_t o16[]; };
layout(binding = 4, scalar) writeonly buffer LSE { float lse_out[]; };

#include "lib/softmax.glsl"
#include "lib/mask.glsl"
#include "lib/load8.glsl"
#include "lib/matrix_types.glsl"

DEFINE_LOAD8(load_q, q8, q16)
DEFINE_LOAD8(load_k, k8, k16)
DEFINE_LOAD8(load_v, v8, v16)
DEFINE_STORE8(put_o, o8, o16)

#include "lib/tile.glsl"

#include "lib/rows_coopmat.glsl"

// Lazy rescaling (FlashAttention-4, arXiv:2603.05451): O and l stay relative to
// an old maximum until a row grows by more than 2^8. P is then at most 256,
// and the final division cancels the difference.
const float RESCALE_THRESHOLD = 8.0;

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint head = gl_WorkGroupID.y;
    const uint batch = gl_WorkGroupID.z;
    const uint kv_head = head / p.heads_per_kv;
    // The longest rows of a causal mask first, so that no long one is left for the end.
    const uint block = CAUSAL ? gl_NumWorkGroups.x - 1 - gl_WorkGroupID.x : gl_WorkGroupID.x;
    const uint block_row = block * BLOCK_M;
    const uint subgroup_row = gl_SubgroupID * SUBGROUP_ROWS;  // within the block
    const int row0 = int(block_row + subgroup_row);           // first row of this subgroup

    const uint q_base = p.q_offset + batch * p.q_stride_b + head * p.q_stride_h + block_row * p.q_stride_s;
    const uint k_base = p.k_offset + batch * p.k_stride_b + kv_head * p.k_stride_h;
    const uint v_base = p.v_offset + batch * p.v_stride_b + kv_head * p.v_stride_h;

    MatA Q_[ROW_TILES * DIM_TILES];  // (SUBGROUP_ROWS, head_dim)
    [[unroll]] for (uint stage = 0; stage < BLOCK_M; stage += STAGE_ROWS) {
        stage_q(q_base, block_row, stage);
        if (subgroup_row >= stage && subgroup_row < stage + STAGE_ROWS) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                    coopMatLoad(Q_[r * DIM_TILES + d], tile, (subgroup_row - stage + r * MAT_M) * LD + d * (MAT_N / 8), LD,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
    }

    MatC O_[ROW_TILES * DIM_TILES];  // (SUBGROUP_ROWS, head_dim)
    MatC m[ROW_TILES];               // running maximum, base 2, the same in every column
    MatC l[ROW_TILES];               // partial sums: a row's l is the sum over its columns
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        m[r] = MatC(MAX_INIT);
        l[r] = MatC(0.0);
        [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
            O_[r * DIM_TILES + d] = MatC(0.0);
        }
    }

    const int block_keys = visible_keys(int(min(block_row + BLOCK_M, p.seq_q)) - 1);  // keys that the last row sees
    const int subgroup_keys = visible_keys(row0 + int(SUBGROUP_ROWS) - 1);

    uvec4 next_k[COPIES];
    uvec4 next_v[COPIES];
    if (PREFETCH) {
        [[unroll]] for (uint i = 0; i < COPIES; i++) {
            next_k[i] = fetch_k(k_base, i * WORKGROUP_SIZE + tid, p.seq_kv);
            next_v[i] = fetch_v(v_base, i * WORKGROUP_SIZE + tid, p.seq_kv);
        }
    }

    // Unrolled, the loop only grows: five times the code, ten times the compile time.
    [[dont_unroll]] for (int col0 = 0; col0 < block_keys; col0 += int(BLOCK_N)) {
        barrier();  // the tile before is read
        [[unroll]] for (uint i = 0; i < COPIES; i++) {
            const uint at = i * WORKGROUP_SIZE + tid;
            if (!PREFETCH) {
                next_k[i] = fetch_k(k_base + col0 * p.k_stride_s, at, p.seq_kv - col0);
                next_v[i] = fetch_v(v_base + col0 * p.v_stride_s, at, p.seq_kv - col0);
            }
            put_kv(at, next_k[i], next_v[i]);
        }
        barrier();  // tile written before it is read
        if (PREFETCH && col0 + int(BLOCK_N) < block_keys) {
            const uint next = col0 + BLOCK_N;
            [[unroll]] for (uint i = 0; i < COPIES; i++) {
                next_k[i] = fetch_k(k_base + next * p.k_stride_s, i * WORKGROUP_SIZE + tid, p.seq_kv - next);
                next_v[i] = fetch_v(v_base + next * p.v_stride_s, i * WORKGROUP_SIZE + tid, p.seq_kv - next);
            }
        }
        if (CAUSAL && col0 >= subgroup_keys) {
            continue;  // no row of this subgroup sees the tile; the loop's barriers are still met
        }

        MatC S[ROW_TILES * COL_TILES];  // (SUBGROUP_ROWS, BLOCK_N)
        [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                S[r * COL_TILES + n] = MatC(0.0);
            }
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                MatB kt;  // K^T: a row-major tile of K read by columns
                coopMatLoad(kt, tile, n * MAT_N * LD + d * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    S[r * COL_TILES + n] = coopMatMulAdd(Q_[r * DIM_TILES + d], kt, S[r * COL_TILES + n]);
                }
            }
        }
        if (col0 + int(BLOCK_N) > visible_keys(row0)) {  // some row does not see all of the tile
            const MatC index = element_index();
            [[unroll]] for (uint i = 0; i < index.length(); i++) {
                const int row = row0 + int(index[i]) / int(MAT_N);
                const int col = col0 + int(index[i]) % int(MAT_N);
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    const int keys = visible_keys(row + int(r * MAT_M));
                    [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                        if (col + int(n * MAT_N) >= keys) {
                            S[r * COL_TILES + n][i] = NEG_INF;
                        }
                    }
                }
            }
        }

        MatA P[ROW_TILES * COL_TILES];
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            MatC t = S[r * COL_TILES];
            bool grew = false;
            [[unroll]] for (uint i = 0; i < t.length(); i++) {
                [[unroll]] for (uint n = 1; n < COL_TILES; n++) {
                    t[i] = max(t[i], S[r * COL_TILES + n][i]);
                }
                grew = grew || t[i] * p.scale_log2 > m[r][i] + RESCALE_THRESHOLD;
            }
            if (subgroupAny(grew)) {
                const MatC row_max = broadcast_rows(t, false);
                MatC alpha;
                [[unroll]] for (uint i = 0; i < t.length(); i++) {
                    const float m_new = max(m[r][i], row_max[i] * p.scale_log2);
                    alpha[i] = exp2(m[r][i] - m_new);
                    m[r][i] = m_new;
                    l[r][i] *= alpha[i];
                    [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                        O_[r * DIM_TILES + d][i] *= alpha[i];
                    }
                }
            }
            [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
                MatC weight;
                [[unroll]] for (uint i = 0; i < weight.length(); i++) {
                    weight[i] = exp2(fma(S[r * COL_TILES + n][i], p.scale_log2, -m[r][i]));
                    l[r][i] += weight[i];
                }
                P[r * COL_TILES + n] = to_left(weight);
            }
        }

        [[unroll]] for (uint n = 0; n < COL_TILES; n++) {
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                MatB v;
                coopMatLoad(v, tile, (BLOCK_N + n * MAT_N) * LD + d * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
                    O_[r * DIM_TILES + d] = coopMatMulAdd(P[r * COL_TILES + n], v, O_[r * DIM_TILES + d]);
                }
            }
        }
    }

    const uint o_base = p.o_offset + batch * p.o_stride_b + head * p.o_stride_h + block_row * p.o_stride_s;
    const uint lse_base = p.lse_offset + batch * p.lse_stride_b + head * p.lse_stride_h;
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        const MatC sum = broadcast_rows(l[r], true);
        if (WRITE_LSE) {
            const MatC index = element_index();
            [[unroll]] for (uint i = 0; i < index.length(); i++) {
                const uint row = uint(row0) + r * MAT_M + uint(index[i]) / MAT_N;
                if (uint(index[i]) % MAT_N == 0 && row < p.seq_q) {
                    lse_out[lse_base + row] = lse(m[r][i], sum[i]);
                }
            }
        }
        barrier();  // the last key tile, or the row tile before, is read
        [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
            [[unroll]] for (uint i = 0; i < sum.length(); i++) {
                O_[r * DIM_TILES + d][i] *= inverse_sum(sum[i]);
            }
            const MatA o = to_left(O_[r * DIM_TILES + d]);
            coopMatStore(o, tile, gl_SubgroupID * MAT_M * LD + d * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutRowMajor);
        }
        store_o(o_base, block_row, r);
    }
}
