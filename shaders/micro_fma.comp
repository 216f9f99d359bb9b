// micro_fma: the rate at which a device multiplies and adds float32 numbers in registers.
//
//     x = fma(x, factor, addend), iters times, on CHAINS numbers x of each
//     invocation that start at invocation/count + chain
//
//     y  (invocations)  f32, the sum of an invocation's numbers
//
// The chains are independent, so that one hides the latency of the others. Factor and
// addend are parameters, because a compiler could evaluate constants.
//
// Dispatch: (workgroups, 1, 1).
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint iters;
    float factor;
    float addend;
} p;

layout(binding = 0, scalar) writeonly buffer Y { float y[]; };

const uint CHAINS = 16;

void main() {
    const uint count = gl_NumWorkGroups.x * WORKGROUP_SIZE;
    float x[CHAINS];
    [[unroll]] for (uint i = 0; i < CHAINS; i++) {
        x[i] = float(gl_GlobalInvocationID.x) / float(count) + float(i);
    }
    for (uint t = 0; t < p.iters; t++) {
        [[unroll]] for (uint i = 0; i < CHAINS; i++) {
            x[i] = fma(x[i], p.factor, p.addend);
        }
    }
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < CHAINS; i++) {
        sum += x[i];
    }
    y[gl_GlobalInvocationID.x] = sum;
}
