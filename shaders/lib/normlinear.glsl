// normlinear: what kernels of package normlinear share: their tensors, and y from sums.
//
// The includer declares the specialization constants GLU, ACTIVATION, BIAS, FORMAT, ALIGNED and WHOLE of normlinear.comp.

const uint SILU = 0;
const uint GELU = 1;
const uint GELU_TANH = 2;

// Where a tensor lies: its first element, and the elements from a row to the next.
struct Place {
    uint offset, stride;
};

layout(push_constant, scalar) uniform Params {
    uint k;
    uint n;
    float eps;
    Place x;  // elements, like all that follow
    Place w;
    Place y;
    uint norm_w_offset;
    uint bias_offset;
} p;

#include "vec16.glsl"
#include "formats.glsl"
#include "activation.glsl"

READ16(0, X, x)
layout(binding = 1, scalar) readonly buffer NormW { float norm_w[]; };
layout(binding = 1, scalar) readonly buffer NormW4 { vec4 norm_w4[]; };
READ16(2, W, w)
layout(binding = 3, scalar) readonly buffer Bias { float bias[]; };
layout(binding = 4, scalar) writeonly buffer Y { float y32[]; };
layout(binding = 4, scalar) writeonly buffer Y16 { uint16_t y16[]; };

uint at(const Place place, const uint row, const uint i) { return place.offset + row * place.stride + i; }

// Elements i to i + VEC - 1, as far as n reaches. A branch for what is not whole would be compiled for every load.
#define VECTOR(name, i, n) (WHOLE && ALIGNED ? (n) > 0 ? name##16[(i) / VEC] : uvec4(0) : load_##name(i, n))

vec4 norm_weights(const uint i, const uint n) {
    const uint first = p.norm_w_offset + i;
    if (ALIGNED && (WHOLE ? n > 0 : n >= 4)) {
        return norm_w4[first / 4];
    }
    vec4 v = vec4(0.0);
    [[unroll]] for (uint e = 0; e < 4; e++) {
        if (e < n) {
            v[e] = norm_w[first + e];
        }
    }
    return v;
}

uint left(const uint i) { return p.k > i ? p.k - i : 0; }

float biased(const float x, const uint j) { return BIAS ? x + bias[p.bias_offset + j] : x; }

// write writes column j of row r of y: squares of the row's elements, and sums of products, up's with GLU.
void write(const uint r, const uint j, const float squares, const float sum, const float up) {
    const float rstd = inversesqrt(squares / float(p.k) + p.eps);
    float v = biased(sum * rstd, j);
    if (GLU) {
        v = activated(vec4(v)).value.x * biased(up * rstd, p.n + j);
    }
    if (FORMAT == FORMAT_F32) {
        y32[at(p.y, r, j)] = v;
    } else {
        y16[at(p.y, r, j)] = uint16_t(narrow_to(FORMAT, v));
    }
}
