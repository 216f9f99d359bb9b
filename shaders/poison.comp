// poison: leaves a pattern in shared memory and registers for the next workgroups on a
// multiprocessor. Tests run it before a kernel, so that a kernel which reads uninitialized
// memory computes with the pattern, not with a lucky zero.
//
//     sink  (1)  u32, never written
//
// Each invocation holds REGISTERS copies of the word across a barrier, so that all live at
// once. It loads them from shared memory, so that they are no constants.
//
// Dispatch: (workgroups, 1, 1), several for each multiprocessor.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;
layout(constant_id = 1) const uint WORDS = 4096;  // of shared memory, all that the device has
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint word;
} p;

layout(binding = 0, scalar) writeonly buffer Sink { uint sink[]; };

const uint REGISTERS = 96;

shared uint memory[WORDS];

void main() {
    for (uint i = gl_LocalInvocationID.x; i < WORDS; i += WORKGROUP_SIZE) {
        memory[i] = p.word;
    }
    barrier();  // memory written before it is read
    uint x[REGISTERS];
    [[unroll]] for (uint i = 0; i < REGISTERS; i++) {
        x[i] = memory[(gl_LocalInvocationID.x + i) % WORDS];
    }
    barrier();  // the copies live across it
    uint different = 0;
    [[unroll]] for (uint i = 0; i < REGISTERS; i++) {
        different |= x[i] ^ x[(i + 1) % REGISTERS];
    }
    if (different != 0) {  // never: all are the word
        sink[0] = different;
    }
}
