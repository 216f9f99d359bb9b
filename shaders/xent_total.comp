// xent_total: how many tokens count, and the loss of all, for xent_rows.
//
//     n          = tokens whose label is not ignore
//     totals[1]  = 1 / n                       with MEAN, 0 if n is 0; else 1
//     totals[0]  = totals[1] * dloss           without SCALED dloss is 1
//     loss       = totals[1] * sum of losses   with SUM_LOSSES, instead of the above
//
//     labels  (tokens)  i32, contiguous, as losses
//     losses  (tokens)  f32, 0 for a token that does not count
//     dloss, loss  (1)  f32
//     totals  (2)       f32
//
// Dispatch: one workgroup. A tree adds the sums of its invocations: the same bits on every run.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;  // a power of two
layout(constant_id = 1) const bool SUM_LOSSES = false;
layout(constant_id = 2) const bool MEAN = true;
layout(constant_id = 3) const bool SCALED = false;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint tokens;
    int ignore_label;
    uint labels_offset;  // elements, like all that follow
    uint losses_offset;
    uint dloss_offset;
    uint loss_offset;
} p;

layout(binding = 0, scalar) readonly buffer Labels { int labels[]; };
layout(binding = 1, scalar) readonly buffer Losses { float losses[]; };
layout(binding = 2, scalar) readonly buffer DLoss { float dloss_in[]; };
layout(binding = 3, scalar) buffer Totals { float totals[]; };
layout(binding = 4, scalar) writeonly buffer Loss { float loss_out[]; };

shared uint counts[WORKGROUP_SIZE];
shared float sums[WORKGROUP_SIZE];

void main() {
    const uint tid = gl_LocalInvocationIndex;
    uint count = 0;
    float sum = 0.0;
    for (uint t = tid; t < p.tokens; t += WORKGROUP_SIZE) {
        if (SUM_LOSSES) {
            sum += losses[p.losses_offset + t];
        } else {
            count += labels[p.labels_offset + t] != p.ignore_label ? 1 : 0;
        }
    }
    counts[tid] = count;
    sums[tid] = sum;
    for (uint size = WORKGROUP_SIZE / 2; size > 0; size /= 2) {
        barrier();  // written before they are read
        if (tid < size) {
            counts[tid] += counts[tid + size];
            sums[tid] += sums[tid + size];
        }
    }
    if (tid != 0) {
        return;
    }
    if (SUM_LOSSES) {
        loss_out[p.loss_offset] = totals[1] * sums[0];
        return;
    }
    const float each = MEAN ? (counts[0] > 0 ? 1.0 / float(counts[0]) : 0.0) : 1.0;
    totals[0] = SCALED ? each * dloss_in[p.dloss_offset] : each;
    totals[1] = each;
}
