// quant_rows: Q and K as attention_quantize.comp writes them, with SPREAD 1, four elements at a time as
// READ4 of lib/element.glsl has them. Offsets and strides of q and k are in bytes.
//
// The includer declares `const uint FORMAT`, the number of a dtype.Quant, and HEAD_DIM.

#include "from_e4m3.glsl"

layout(binding = 0, scalar) readonly buffer Q { uint q4[]; };
layout(binding = 1, scalar) readonly buffer K { uint k4[]; };
layout(binding = 5, scalar) readonly buffer QRows { vec2 q_rows[]; };  // scale; base-2 logits of the mean key
layout(binding = 6, scalar) readonly buffer KScales { float k_scales[]; };

const uint E4M3 = 3;  // FORMAT
const uint ROW_BYTES = (HEAD_DIM + 15) / 16 * 16;

vec4 elements(const uint w) {
    if (FORMAT == E4M3) {
        const uvec2 h = e4m3_halves(w);
        return vec4(unpackHalf2x16(h.x), unpackHalf2x16(h.y)).xzyw * E4M3_UNIT;
    }
    return vec4(ivec4(w << 24, w << 16, w << 8, w) >> 24);
}

vec4 load_q(const uint i) { return elements(q4[i / 4]); }
vec4 load_k(const uint i) { return elements(k4[i / 4]); }
