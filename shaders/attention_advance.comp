// attention_advance: the lengths of sequences after a step.
//
//     seq_lens[b] += keys
//
//     seq_lens (batch)  i32, contiguous
//
// Dispatch: any number of workgroups; each works on lengths in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint batch;
    int keys;
    uint seq_lens_offset;  // elements
} p;

layout(binding = 0, scalar) buffer SeqLens { int seq_lens[]; };

void main() {
    for (uint b = gl_GlobalInvocationID.x; b < p.batch; b += gl_NumWorkGroups.x * WORKGROUP_SIZE) {
        seq_lens[p.seq_lens_offset + b] += p.keys;
    }
}
