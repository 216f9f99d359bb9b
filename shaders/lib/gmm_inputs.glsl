// gmm_inputs: the tensors that the kernels of mixtures read, bindings 0 to 3, and where they lie.

#include "element.glsl"

// Where a tensor (tokens, components) lies, in elements.
struct Place {
    uint offset;
    uint stride_t;
    uint stride_k;
};

layout(binding = 0, scalar) readonly buffer Logit { ELEM logit_in[]; };
layout(binding = 1, scalar) readonly buffer Mu { ELEM mu_in[]; };
layout(binding = 2, scalar) readonly buffer LogSigma { ELEM log_sigma_in[]; };
layout(binding = 3, scalar) readonly buffer Y { float y_in[]; };
