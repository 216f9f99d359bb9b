// direct_sums: what subgroups found becomes O and LSE (lib/fwd_direct.glsl).
//
// Stripes leave m, l and O of their rows in shared memory, PASS parts of O's columns at a time
// (lib/direct_operands.glsl), and all invocations add them up.

// What a subgroup knows of its rows.
struct Sums {
    MatC o[ROW_TILES * VALUE_TILES];  // (SUBGROUP_ROWS, head_dim)
    RowState rows[ROW_TILES * ROWS];  // l is the whole row's in the functions below
};

const uint PART_LD = 4 * SUBGROUP_ROWS + 2;  // quads of a part of a subgroup's columns; 2 more for the banks
const uint FIT = 1536 / (NUM_SUBGROUPS * PART_LD);  // in 24 KiB
const uint PASS = FIT >= PARTS ? PARTS : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;

shared vec4 quads[STRIPES > 1 ? NUM_SUBGROUPS * PASS * PART_LD : 1];
shared vec2 row_sums[STRIPES > 1 ? NUM_SUBGROUPS * SUBGROUP_ROWS : 1];  // m and l

// pack_o returns two elements of O in one word, as TO_T does.
uint pack_o(const float low, const float high) {
#ifdef ELEM_F16
    return packFloat2x16(f16vec2(low, high));
#else
    return pack_bf16(low, high);
#endif
}

// own_quad returns part number `part` of O of row i*8 + lane_g() of matrix row r, with QUADS.
vec4 own_quad(const Sums s, const uint r, const uint i, const uint part) {
    const uint d = r * VALUE_TILES + part / 4 * 4 + part % 2 * 2;
    const uint e = i * 4 + part % 4 / 2;
    return vec4(s.o[d][e], s.o[d][e + 2], s.o[d + 1][e], s.o[d + 1][e + 2]);
}

// store_rows writes O and LSE of rows whose keys no other subgroup has. o_at and lse_at are the places
// of row row0. Every invocation of the subgroup calls it.
void store_rows(inout Sums s, const MatC index, const uint o_at, const uint lse_at, const uint row0) {
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const float inverse = inverse_sum(s.rows[r * ROWS + i].l);
            const uint row = r * MAT_M + uint(index[i * ROW_RUN]) / MAT_N;
            const bool there = row0 + row < p.seq_q;
            if (WRITE_LSE && there && speaks_for_row(index[i * ROW_RUN])) {
                lse_out[lse_at + row * p.lse_stride_s] = lse(s.rows[r * ROWS + i].m, s.rows[r * ROWS + i].l);
            }
            if (QUADS) {
                [[unroll]] for (uint part = 0; part < PARTS; part += 2) {
                    const vec4 x = own_quad(s, r, i, part) * inverse;
                    const vec4 y = own_quad(s, r, i, part + 1) * inverse;
                    const uvec4 words = uvec4(pack_o(x.x, x.y), pack_o(x.z, x.w), pack_o(y.x, y.y), pack_o(y.z, y.w));
                    const uint col = part_column(part, lane_t());
                    if (there && (HEAD_DIM % 64 == 0 || col < HEAD_DIM)) {
                        put_o(o_at + row * p.o_stride_s + col, words);
                    }
                }
            } else {
                [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                    [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                        const float x = s.o[r * VALUE_TILES + d][e] * inverse;
                        const uint col = d * MAT_N + uint(index[e]) % MAT_N;
                        if (there && col < HEAD_DIM) {
                            o16[o_at + row * p.o_stride_s + col] = uint16_t(pack_o(x, 0.0));
                        }
                    }
                }
            }
        }
    }
}

// put_rows puts the parts first to first+PASS-1 of a subgroup's O into shared memory.
void put_rows(const Sums s, const MatC index, const uint first) {
    const uint base = gl_SubgroupID * PASS * PART_LD;
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        if (QUADS) {
            [[unroll]] for (uint i = 0; i < 2; i++) {
                [[unroll]] for (uint n = 0; n < PASS; n++) {
                    quads[base + n * PART_LD + (r * 16 + i * 8) * 4 + gl_SubgroupInvocationID] = own_quad(s, r, i, first + n);
                }
            }
        } else {
            [[unroll]] for (uint d = 0; d < VALUE_TILES; d++) {
                [[unroll]] for (uint e = 0; e < LENGTH; e++) {
                    const uint row = r * MAT_M + uint(index[e]) / MAT_N;
                    const uint col = d * MAT_N + uint(index[e]) % MAT_N;
                    const uint n = col / 64 * 4 + col % 16 / 4 - first;  // wraps below first
                    const float x = s.o[r * VALUE_TILES + d][e];
                    if (n < PASS) {
                        quads[base + n * PART_LD + row * 4 + col % 64 / 16][col % 4] = x;
                    }
                }
            }
        }
    }
}

// add_rows adds up the parts first to first+PASS-1 of the stripes' O, and writes them.
void add_rows(const uint o_at, const uint lse_at, const uint block_row, const uint first) {
    [[unroll]] for (uint at = gl_LocalInvocationIndex; at < BLOCK_M * 4 * PASS; at += WORKGROUP_SIZE) {
        const uint row = at / (4 * PASS);
        const uint t = at / PASS % 4;
        const uint n = at % PASS;
        const uint subgroup = row / SUBGROUP_ROWS * STRIPES;
        const uint r = row % SUBGROUP_ROWS;
        float top = MAX_INIT;
        [[unroll]] for (uint s = 0; s < STRIPES; s++) {
            top = max(top, row_sums[(subgroup + s) * SUBGROUP_ROWS + r].x);
        }
        float l = 0.0;
        vec4 o = vec4(0.0);
        [[unroll]] for (uint s = 0; s < STRIPES; s++) {
            const vec2 ml = row_sums[(subgroup + s) * SUBGROUP_ROWS + r];
            const float alpha = exp2(ml.x - top);
            l = fma(ml.y, alpha, l);
            o = fma(vec4(alpha), quads[((subgroup + s) * PASS + n) * PART_LD + r * 4 + t], o);
        }
        o *= inverse_sum(l);
        const uint col = part_column(first + n, t);
        if (block_row + row < p.seq_q && (HEAD_DIM % 64 == 0 || col < HEAD_DIM)) {
            put_o4(o_at + row * p.o_stride_s + col, uvec2(pack_o(o.x, o.y), pack_o(o.z, o.w)));
        }
        if (WRITE_LSE && col == 0 && block_row + row < p.seq_q) {
            lse_out[lse_at + row * p.lse_stride_s] = lse(top, l);
        }
    }
}

// ADD_PARTS is pass number n of combine_stripes. A loop of passes, unrolled, would have barriers in
// its body, and NVIDIA's compiler then keeps O in local memory: 18 µs instead of 5.
#define ADD_PARTS(n)                                     \
    if (n * PASS < PARTS) {                              \
        if (n > 0) {                                     \
            barrier(); /* the parts before are read */   \
        }                                                \
        put_rows(s, index, n * PASS);                    \
        barrier(); /* parts and row_sums are written */  \
        add_rows(o_at, lse_at, block_row, n * PASS);     \
    }

// combine_stripes writes O and LSE of the block's rows. o_at and lse_at are the places of row block_row.
// Every invocation of the workgroup calls it.
void combine_stripes(const Sums s, const MatC index, const uint o_at, const uint lse_at, const uint block_row) {
    [[unroll]] for (uint i = 0; i < ROW_TILES * ROWS; i++) {
        const uint row = i / ROWS * MAT_M + uint(index[i % ROWS * ROW_RUN]) / MAT_N;
        if (speaks_for_row(index[i % ROWS * ROW_RUN])) {
            row_sums[gl_SubgroupID * SUBGROUP_ROWS + row] = vec2(s.rows[i].m, s.rows[i].l);
        }
    }
    ADD_PARTS(0)
    ADD_PARTS(1)
    ADD_PARTS(2)
    ADD_PARTS(3)
    ADD_PARTS(4)
    ADD_PARTS(5)
    ADD_PARTS(6)
    ADD_PARTS(7)
    ADD_PARTS(8)
    ADD_PARTS(9)
    ADD_PARTS(10)
    ADD_PARTS(11)
    ADD_PARTS(12)
    ADD_PARTS(13)
    ADD_PARTS(14)
    ADD_PARTS(15)
}
