// block_dq: dQ of a tile of rows, as far as it depends on the keys of one block, in
// lib/bwd_fused_matrix.glsl.
//
//     dQ (STREAM, head_dim) = dX (STREAM, BLOCK_M) * K (BLOCK_M, head_dim)
//
// dX^T and K are in shared memory. The subgroups divide the MAT_M x MAT_N matrices of dQ.
//
// The includer declares the specialization constants named here, the push constants, put_dq
// (lib/load8.glsl) and `part_dq`, and includes lib/tile_bwd.glsl and lib/softmax.glsl.

const uint KEY_TILES = BLOCK_M / MAT_N;
const uint EXCHANGE_LD = STREAM / 8 + 1;  // one more for the banks
const uint PART_LD = DIM_TILES * MAT_N;   // elements of a row of the sums in memory
const uint DQ_TILES = STREAM / MAT_M * DIM_TILES;
const uint OWN_DQ_TILES = (DQ_TILES + NUM_SUBGROUPS - 1) / NUM_SUBGROUPS;  // of one subgroup

shared uvec4 keys[BLOCK_M * LD];                // K, (BLOCK_M, head_dim)
shared uvec4 exchange[BLOCK_M * EXCHANGE_LD];  // dX^T, (BLOCK_M, STREAM)

// The matrices of dQ of a tile that one subgroup computes.
struct OwnDQ {
    MatC at[OWN_DQ_TILES];
};

// dq_row and dq_col return where matrix number i of a subgroup is in dQ of the tile, in
// matrices.
uint dq_row(const uint i) {
    return (gl_SubgroupID + i * NUM_SUBGROUPS) / DIM_TILES;
}

uint dq_col(const uint i) {
    return (gl_SubgroupID + i * NUM_SUBGROUPS) % DIM_TILES;
}

// is_dq reports whether matrix number i of the subgroup is in dQ.
bool is_dq(const uint i) {
    return DQ_TILES % NUM_SUBGROUPS == 0 || gl_SubgroupID + i * NUM_SUBGROUPS < DQ_TILES;
}

// part_at returns where matrix number i is in a tile of the sums in memory.
uint part_at(const uint base, const uint i) {
    return base + dq_row(i) * MAT_M * PART_LD + dq_col(i) * MAT_N;
}

// load_dq returns the sums over the blocks before, which start at base; 0 for the first
// block of a share.
void load_dq(out OwnDQ dQ, const uint base, const bool first) {
    [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
        dQ.at[i] = MatC(0.0);
    }
    if (!ONE_BLOCK && !first) {
        [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
            if (is_dq(i)) {
                coopMatLoad(dQ.at[i], part_dq, part_at(base, i), PART_LD, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
    }
}

// add_dq adds dX * K of the whole block.
void add_dq(inout OwnDQ dQ) {
    [[unroll]] for (uint n = 0; n < KEY_TILES; n++) {
        fence(n);
        [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
            // Past the last matrix of dQ others are computed once more: a branch would copy the sums.
            const uint row = min(dq_row(i), STREAM / MAT_M - 1);
            MatA left;  // dX^T read by columns
            MatB right;
            coopMatLoad(left, exchange, n * MAT_N * EXCHANGE_LD + row * (MAT_M / 8), EXCHANGE_LD, gl_CooperativeMatrixLayoutColumnMajor);
            coopMatLoad(right, keys, n * MAT_N * LD + dq_col(i) * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutRowMajor);
            dQ.at[i] = coopMatMulAdd(left, right, dQ.at[i]);
        }
    }
}

// store_dq writes the sums to memory.
void store_dq(const OwnDQ dQ, const uint base) {
    [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
        if (is_dq(i)) {
            coopMatStore(dQ.at[i], part_dq, part_at(base, i), PART_LD, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
}

// put_dq_tile writes dQ of the rows of a tile, of which the first starts at base, by
// way of the tile of Q. Rows beyond `last` are not there.
void put_dq_tile(const OwnDQ dQ, const uint base, const uint last) {
    [[unroll]] for (uint i = 0; i < OWN_DQ_TILES; i++) {
        const MatA result = to_left(dQ.at[i] * (p.scale_log2 * LN_2), false);
        if (is_dq(i)) {
            coopMatStore(result, tile, dq_row(i) * MAT_M * LD + dq_col(i) * (MAT_N / 8), LD, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
    barrier();  // dQ written before it is read
    [[unroll]] for (uint i = 0; i < COPIES; i++) {
        if (copies(i) && copies_dim(copy_col(i)) && copy_row(i) <= last) {
            put_dq(base + copy_row(i) * p.dq_stride_s + copy_col(i) * 8, tile[copy_row(i) * LD + copy_col(i)]);
        }
    }
}
