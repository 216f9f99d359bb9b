// gmm_loss: log-probabilities of tokens, and what each workgroup's add to the loss.
//
// The includer declares the specialization constants WORKGROUP_SIZE, a power of two,
// WRITE_LOG_P and WRITE_LOSS; `p` with tokens and log_p_offset; buffers log_p_out, of float,
// and parts, of vec4; and defines mixture_of.
#ifndef LIB_GMM_LOSS_GLSL
#define LIB_GMM_LOSS_GLSL

#include "gmm.glsl"

// mixture_of returns the mixture of a token.
Mixture mixture_of(const uint token);

shared float sums[WORKGROUP_SIZE];

// log_probabilities writes log_p of the workgroup's tokens, and to its row of parts their
// sum of -log_p / tokens.
void log_probabilities() {
    const uint tid = gl_LocalInvocationIndex;
    float sum = 0.0;
    for (uint token = gl_GlobalInvocationID.x; token < p.tokens; token += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        const float log_p = log_probability(mixture_of(token));
        if (WRITE_LOG_P) {
            log_p_out[p.log_p_offset + token] = log_p;
        }
        sum -= log_p / float(p.tokens);  // divided first: a sum of large ones may overflow
    }
    if (!WRITE_LOSS) {
        return;
    }
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
