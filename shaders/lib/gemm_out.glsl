// gemm_out: C, R, X and S of a GEMM kernel, at the bindings from OUT_BINDING on. The includer
// defines OUT_BINDING.

layout(binding = OUT_BINDING, scalar) buffer C4 { vec4 c4[]; };
layout(binding = OUT_BINDING, scalar) buffer C2 { uvec2 c2[]; };
layout(binding = OUT_BINDING, scalar) buffer C1 { float c1[]; };
layout(binding = OUT_BINDING, scalar) writeonly buffer C32 { uint c32[]; };
layout(binding = OUT_BINDING, scalar) buffer C16 { uint16_t c16[]; };
layout(binding = OUT_BINDING + 1, scalar) readonly buffer R4 { vec4 r4[]; };
layout(binding = OUT_BINDING + 1, scalar) readonly buffer R2 { uvec2 r2[]; };
layout(binding = OUT_BINDING + 1, scalar) readonly buffer R1 { float r1[]; };
layout(binding = OUT_BINDING + 1, scalar) readonly buffer R16 { uint16_t r16[]; };
layout(binding = OUT_BINDING + 2, scalar) buffer X4 { vec4 x4[]; };
layout(binding = OUT_BINDING + 2, scalar) buffer X2 { uvec2 x2[]; };
layout(binding = OUT_BINDING + 2, scalar) buffer X1 { float x1[]; };
layout(binding = OUT_BINDING + 2, scalar) buffer X16 { uint16_t x16[]; };
layout(binding = OUT_BINDING + 3, scalar) writeonly buffer S4 { vec4 s4[]; };
layout(binding = OUT_BINDING + 3, scalar) writeonly buffer S2 { uvec2 s2[]; };
layout(binding = OUT_BINDING + 3, scalar) writeonly buffer S1 { float s1[]; };
layout(binding = OUT_BINDING + 3, scalar) writeonly buffer S16 { uint16_t s16[]; };
