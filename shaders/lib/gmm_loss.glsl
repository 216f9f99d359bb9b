// gmm_loss: log-probabilities of tokens, and the share of each workgroup's tokens in the loss.
//
// The includer declares the specialization constants WORKGROUP_SIZE, a power of two,
// WRITE_LOG_P and WRITE_LOSS; `p` with tokens, log_p_offset and loss_offset; and buffers log_p_out
// and loss_out, of float, and, coherent, parts, of vec4, and a uint count, which is 0 before and after.
#extension GL_KHR_memory_scope_semantics : require

#include "gmm.glsl"

shared float sums[WORKGROUP_SIZE];
shared bool is_last;

float loss_of(const uint token, const Mixture m) {
    const float log_p = log_probability(m);
    if (WRITE_LOG_P) {
        log_p_out[p.log_p_offset + token] = log_p;
    }
    return -log_p / float(p.tokens);  // divided first: a sum of large ones may overflow
}

// add_up returns to invocation 0 the sum of one number per invocation of the workgroup.
float add_up(const float x) {
    const uint tid = gl_LocalInvocationIndex;
    sums[tid] = x;
    for (uint size = WORKGROUP_SIZE / 2; size > 0; size /= 2) {
        barrier();  // sums written before they are read
        if (tid < size) {
            sums[tid] += sums[tid + size];
        }
    }
    return sums[0];
}

// write_loss writes the share of the workgroup's tokens to its row of parts, and counts the
// workgroup. The last workgroup adds the rows, always in the same order, and leaves a count of 0 for
// the next call.
void write_loss(const float sum) {
    if (!WRITE_LOSS) {
        return;
    }
    const uint tid = gl_LocalInvocationIndex;
    const float part = add_up(sum);
    if (tid == 0) {
        parts[gl_WorkGroupID.x] = vec4(part, 0.0, 0.0, 0.0);
        memoryBarrierBuffer();  // the row is visible before it is counted
        is_last = atomicAdd(count, 1) == gl_NumWorkGroups.x - 1;
        if (is_last) {
            count = 0;
        }
    }
    barrier();  // is_last is written, and sums are read
    float all = 0.0;
    if (is_last) {
        memoryBarrierBuffer();  // the count is read before the rows are
        for (uint i = tid; i < gl_NumWorkGroups.x; i += WORKGROUP_SIZE) {
            all += parts[i].x;
        }
    }
    all = add_up(all);  // of all workgroups, as it has barriers
    if (tid == 0 && is_last) {
        loss_out[p.loss_offset] = all;
    }
}
