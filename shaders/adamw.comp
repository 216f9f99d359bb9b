// adamw: one step of AdamW for every element of many parameter tensors.
//
//     g     = grad * scale
//     m     = beta1 * m + (1 - beta1) * g
//     v     = beta2 * v + (1 - beta2) * g^2
//     param = param * (1 - lr * weight_decay) - step_size * m / (sqrt(v) * v_scale + eps)
//     copy  = param, rounded to ELEM
//
//     chunks       (chunks)  table of lib/adamw.glsl
//     state                  struct of lib/adamw.glsl
//     param, m, v            f32
//     grad                   f32, or ELEM if GRAD_16
//     copy                   ELEM, written if WRITE_COPY
//
// Dispatch: any number of workgroups; each takes chunks in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const bool GRAD_16 = false;
layout(constant_id = 2) const bool WRITE_COPY = false;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint first;   // chunk
    uint chunks;  // from that on
    float beta1;
    float beta2;
    float one_minus_beta1;  // in float64 before rounding
    float one_minus_beta2;
    float eps;
    float weight_decay;
} p;

#include "lib/element.glsl"
#include "lib/pack2.glsl"
#include "lib/adamw.glsl"

layout(binding = 0, scalar) readonly buffer Chunks { Chunk chunks[]; };
layout(binding = 1, scalar) readonly buffer StateBuffer { State state; };
layout(binding = 2, scalar) buffer Param { vec4 param4[]; };
layout(binding = 2, scalar) buffer Param1 { float param1[]; };
layout(binding = 3, scalar) readonly buffer Grad { vec4 grad_f32x4[]; };
layout(binding = 3, scalar) readonly buffer Grad1 { float grad_f32[]; };
layout(binding = 3, scalar) readonly buffer GradElem4 { ELEM4 grad_elem4[]; };
layout(binding = 3, scalar) readonly buffer GradElem { ELEM grad_elem[]; };
layout(binding = 4, scalar) buffer M { vec4 m4[]; };
layout(binding = 4, scalar) buffer M1 { float m1[]; };
layout(binding = 5, scalar) buffer V { vec4 v4[]; };
layout(binding = 5, scalar) buffer V1 { float v1[]; };
layout(binding = 6, scalar) writeonly buffer Copy { ELEM4 copy4[]; };
layout(binding = 6, scalar) writeonly buffer Copy1 { ELEM copy1[]; };

// update moves four elements on. Keep is 1 - lr * weight_decay.
void update(const vec4 grad, inout vec4 param, inout vec4 m, inout vec4 v, const State s, const float keep) {
    const vec4 g = grad * s.scale;
    m = p.beta1 * m + p.one_minus_beta1 * g;
    v = p.beta2 * v + p.one_minus_beta2 * (g * g);
    param = param * keep - s.step_size * (m / (sqrt(v) * s.v_scale + p.eps));
}

void main() {
    const State s = state;
    if (s.apply == 0) {
        return;
    }
    for (uint i = gl_WorkGroupID.x; i < p.chunks; i += gl_NumWorkGroups.x) {
        const Chunk c = chunks[p.first + i];
        const float keep = (c.flags & CHUNK_DECAYS) != 0 ? 1.0 - s.lr * p.weight_decay : 1.0;
        const uint quads = (c.flags & CHUNK_ALIGNED) != 0 ? c.count / 4 : 0;
        for (uint q = gl_LocalInvocationIndex; q < quads; q += WORKGROUP_SIZE) {
            const uint grad_at = c.grad / 4 + q;
            vec4 param = param4[c.param / 4 + q];
            vec4 m = m4[c.m / 4 + q];
            vec4 v = v4[c.v / 4 + q];
            update(GRAD_16 ? widen(grad_elem4[grad_at]) : grad_f32x4[grad_at], param, m, v, s, keep);
            param4[c.param / 4 + q] = param;
            m4[c.m / 4 + q] = m;
            v4[c.v / 4 + q] = v;
            if (WRITE_COPY) {
                copy4[c.copy / 4 + q] = uvec2(pack2(param.x, param.y), pack2(param.z, param.w));
            }
        }
        for (uint e = quads * 4 + gl_LocalInvocationIndex; e < c.count; e += WORKGROUP_SIZE) {
            vec4 param = vec4(param1[c.param + e]);
            vec4 m = vec4(m1[c.m + e]);
            vec4 v = vec4(v1[c.v + e]);
            const float grad = GRAD_16 ? WIDEN(grad_elem[c.grad + e]) : grad_f32[c.grad + e];
            update(vec4(grad), param, m, v, s, keep);
            param1[c.param + e] = param.x;
            m1[c.m + e] = m.x;
            v1[c.v + e] = v.x;
            if (WRITE_COPY) {
                copy1[c.copy + e] = NARROW(param.x);
            }
        }
    }
}
