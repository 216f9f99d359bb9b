// adamw_norm: sums of the squares of gradients, one for each chunk.
//
//     sums[i] = sum of grad^2 over chunk i
//
//     chunks  (chunks)  table of lib/adamw.glsl
//     grad              f32, or ELEM if GRAD_16
//     sums    (chunks)  f32
//
// Each invocation adds its elements from the first to the last, a tree adds the
// invocations: the same bits on every run.
//
// Dispatch: any number of workgroups; each takes chunks in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;  // a power of two
layout(constant_id = 1) const bool GRAD_16 = false;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint first;   // chunk
    uint chunks;  // from that on
} p;

#include "lib/element.glsl"
#include "lib/adamw.glsl"

layout(binding = 0, scalar) readonly buffer Chunks { Chunk chunks[]; };
layout(binding = 1, scalar) readonly buffer Grad { vec4 grad_f32x4[]; };
layout(binding = 1, scalar) readonly buffer Grad1 { float grad_f32[]; };
layout(binding = 1, scalar) readonly buffer GradElem4 { ELEM4 grad_elem4[]; };
layout(binding = 1, scalar) readonly buffer GradElem { ELEM grad_elem[]; };
layout(binding = 2, scalar) writeonly buffer Sums { float sums[]; };

shared float partial[WORKGROUP_SIZE];

void main() {
    const uint tid = gl_LocalInvocationIndex;
    for (uint i = gl_WorkGroupID.x; i < p.chunks; i += gl_NumWorkGroups.x) {
        const Chunk c = chunks[p.first + i];
        const uint quads = (c.flags & CHUNK_ALIGNED) != 0 ? c.count / 4 : 0;
        vec4 sum4 = vec4(0.0);
        for (uint q = tid; q < quads; q += WORKGROUP_SIZE) {
            const uint at = c.grad / 4 + q;
            const vec4 g = GRAD_16 ? widen(grad_elem4[at]) : grad_f32x4[at];
            sum4 += g * g;
        }
        float sum = dot(sum4, vec4(1.0));
        for (uint e = quads * 4 + tid; e < c.count; e += WORKGROUP_SIZE) {
            const float g = GRAD_16 ? WIDEN(grad_elem[c.grad + e]) : grad_f32[c.grad + e];
            sum += g * g;
        }
        barrier();  // partial read, for the chunk before, before it is written
        partial[tid] = sum;
        for (uint size = WORKGROUP_SIZE / 2; size > 0; size /= 2) {
            barrier();  // partial written before it is read
            if (tid < size) {
                partial[tid] += partial[tid + size];
            }
        }
        if (tid == 0) {
            sums[p.first + i] = partial[0];
        }
    }
}
