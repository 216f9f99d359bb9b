// fwd_f32x2_q: Q of float32 as matrices of float16 parts (lib/fwd_f32x2.glsl), straight from
// memory. A part of the body of forward() in lib/fwd_matrix.glsl.
//
// It expects q_at, row0 and place. It defines Q_hi, Q_lo, row_exponent and scale_mantissa.

    // Scale * log2(e) = 2^exponent * mantissa, so that exponents add up without overflow on the way.
    const uint scale_bits = floatBitsToUint(PLAIN.scale_log2);
    const float scale_mantissa = uintBitsToFloat(scale_bits & 0x7fffffu | FLOAT_BIAS << 23);
    const int scale_exponent = int(scale_bits >> 23) - int(FLOAT_BIAS);

    MatA Q_hi[ROW_TILES * DIM_TILES];    // (SUBGROUP_ROWS, head_dim)
    MatA Q_lo[ROW_TILES * DIM_TILES];
    int row_exponent[ROW_TILES * ROWS];  // of Scale * log2(e) * Q, and of the two TOP in S
    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        MatC x[DIM_TILES];
        MatC top;  // largest |Q| of the rows
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint row = min(uint(row0) + r * MAT_M + uint(place[i * ROW_RUN]) / MAT_N, p.seq_q - 1);
            top[i] = 0.0;
            [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
                [[unroll]] for (uint e = i * ROW_RUN; e < (i + 1) * ROW_RUN; e++) {
                    const uint col = d * MAT_N + uint(place[e]) % MAT_N;
                    const bool inside = HEAD_DIM % MAT_N == 0 || col < HEAD_DIM;
                    x[d][e] = inside ? q1[q_at + row * p.q_stride_s + col] : 0.0;
                    top[i] = max(top[i], abs(x[d][e]));
                }
            }
        }
        top = reduce(top, false);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const uint exponent = exponent_of(floatBitsToUint(top[i]));
            row_exponent[r * ROWS + i] = scale_exponent + int(exponent) - int(FLOAT_BIAS) - 2 * int(TOP);
            top[i] = p.q_sign != 0 ? -scale_of(exponent) : scale_of(exponent);
        }
        [[unroll]] for (uint d = 0; d < DIM_TILES; d++) {
            MatC hi;
            MatC lo;
            [[unroll]] for (uint e = 0; e < LENGTH; e++) {
                const float y = x[d][e] * top[e / ROW_RUN];
                hi[e] = round_to_hi(y);
                lo[e] = y - hi[e];
            }
            Q_hi[r * DIM_TILES + d] = to_left(hi, true);
            Q_lo[r * DIM_TILES + d] = to_left(lo, false);
        }
    }
