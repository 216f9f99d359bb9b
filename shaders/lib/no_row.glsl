// no_row: what stands for rows past the last one in the backward kernels on matrices.

// The lse2 of such a row: no score reaches it, so its weights are 0.
const float NO_ROW = 1.7e38;  // about FLT_MAX/2
