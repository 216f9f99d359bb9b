// adamw_prepare: the factors of a step, from the squares of all gradients.
//
//     norm      = sqrt(sum of sums)
//     scale     = min(1, max_norm / norm)
//     step      = step + 1
//     step_size = lr / (1 - beta1^step)
//     v_scale   = 1 / sqrt(1 - beta2^step)
//
// If the norm is infinite or NaN, the step is skipped: skipped grows, step does not. If
// CLIP is false, norm is 0 and scale 1.
//
//     sums   (count)  f32, of adamw_norm
//     state           struct of lib/adamw.glsl
//
// Dispatch: (1, 1, 1).
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;  // a power of two
layout(constant_id = 1) const bool CLIP = true;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint count;
    float max_norm;   // may be infinite: nothing is clipped
    float log_beta1;  // natural logarithms
    float log_beta2;
} p;

#include "lib/adamw.glsl"

layout(binding = 0, scalar) readonly buffer Sums { float sums[]; };
layout(binding = 1, scalar) buffer StateBuffer { State state; };

shared float partial[WORKGROUP_SIZE];

// one_minus_exp returns 1 - exp(x) for x <= 0. Near 0, where that cancels, it is a
// Taylor polynomial. At -0.5 the first term left out is below 2^-26 of the first term.
float one_minus_exp(const float x) {
    if (x < -0.5) {
        return 1.0 - exp(x);
    }
    return -x * (1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0 * (1.0 + x / 7.0 * (1.0 + x / 8.0)))))));
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    float norm = 0.0;
    if (CLIP) {
        float sum = 0.0;
        for (uint i = tid; i < p.count; i += WORKGROUP_SIZE) {
            sum += sums[i];
        }
        partial[tid] = sum;
        for (uint size = WORKGROUP_SIZE / 2; size > 0; size /= 2) {
            barrier();  // partial written before it is read
            if (tid < size) {
                partial[tid] += partial[tid + size];
            }
        }
        norm = sqrt(partial[0]);  // of invocation 0, which alone goes on
    }
    if (tid != 0) {
        return;
    }
    const bool finite = (floatBitsToUint(norm) & 0x7f800000u) != 0x7f800000u;
    state.norm = norm;
    state.apply = finite ? 1 : 0;
    if (!finite) {
        state.skipped += 1;
        return;
    }
    const int next = state.step + 1;
    state.step = next;
    state.scale = norm > p.max_norm ? p.max_norm / norm : 1.0;
    state.step_size = state.lr / one_minus_exp(float(next) * p.log_beta1);
    state.v_scale = inversesqrt(one_minus_exp(float(next) * p.log_beta2));
}
