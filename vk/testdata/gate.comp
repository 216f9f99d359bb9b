// gate: one invocation that waits until the host sets the first word, and says by the second that it
// does, for the tests of package vk.
//
// Dispatch: (1, 1, 1).
#version 450
#extension GL_EXT_scalar_block_layout : require

layout(local_size_x = 1) in;

layout(binding = 0, scalar) coherent volatile buffer Gate {
	uint gate_open, reached;
};

void main() {
	atomicExchange(reached, 1);
	for (uint i = 0; i < 0xffffffffu && atomicOr(gate_open, 0) == 0; i++) {
	}
}
