// glu: what the two passes of gated linear units share: the specialization, and where tensors lie.

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint ACTIVATION = 0;
layout(constant_id = 2) const bool ALIGNED = true;  // offsets and strides are multiples of VEC
layout(local_size_x_id = 0) in;

const uint SILU = 0;
const uint GELU = 1;
const uint GELU_TANH = 2;

#include "vec16.glsl"

// Where a tensor lies: its first element, and the elements from a row to the next.
struct Place {
    uint offset, stride;
};

uint at(const Place place, const uint row, const uint c) { return place.offset + row * place.stride + c; }

#include "activation.glsl"
