// gmm_loss: log-probabilities of tokens, and what each workgroup's add to the loss.
//
// The includer declares the specialization constants WORKGROUP_SIZE, a power of two,
// WRITE_LOG_P and WRITE_LOSS; `p` with tokens and log_p_offset; and buffers log_p_out, of float,
// and parts, of vec4.
#ifndef LIB_GMM_LOSS_GLSL
#define LIB_GMM_LOSS_GLSL

#include "gmm.glsl"

shared float sums[WORKGROUP_SIZE];

// loss_of writes log_p of a token, and returns what it adds to the loss.
float loss_of(const uint token, const Mixture m) {
    const float log_p = log_probability(m);
    if (WRITE_LOG_P) {
        log_p_out[p.log_p_offset + token] = log_p;
    }
    return -log_p / float(p.tokens);  // divided first: a sum of large ones may overflow
}

// write_loss writes to the workgroup's row of parts what the tokens of its invocations add.
void write_loss(const float sum) {
    if (!WRITE_LOSS) {
        return;
    }
    const uint tid = gl_LocalInvocationIndex;
    sums[tid] = sum;
    for (uint size = WORKGROUP_SIZE / 2; size > 0; size /= 2) {
        barrier();  // sums written before they are read
        if (tid < size) {
            sums[tid] += sums[tid + size];
        }
    }
    if (tid == 0) {
        parts[gl_WorkGroupID.x] = vec4(sums[0], 0.0, 0.0, 0.0);
    }
}

#endif
