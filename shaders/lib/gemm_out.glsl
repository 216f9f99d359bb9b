// gemm_out: C, R, X and S, or a bias in its place, of a GEMM kernel, at the bindings from OUT_BINDING on. The includer
// defines OUT_BINDING.

#define OUT_32(at, access, Name, name)                                                      \
    layout(binding = OUT_BINDING + at, scalar) access buffer Name##4 { vec4 name##4[]; };   \
    layout(binding = OUT_BINDING + at, scalar) access buffer Name##2 { uvec2 name##2[]; };  \
    layout(binding = OUT_BINDING + at, scalar) access buffer Name##1 { float name##1[]; };
#define OUT_16(at, access, Name, name) layout(binding = OUT_BINDING + at, scalar) access buffer Name##16 { uint16_t name##16[]; };
#define OUT_VIEWS(at, access, Name, name) OUT_32(at, access, Name, name) OUT_16(at, access, Name, name)

OUT_32(0, , C, c)
layout(binding = OUT_BINDING, scalar) writeonly buffer C32 { uint c32[]; };
OUT_16(0, , C, c)
OUT_VIEWS(1, readonly, R, r)
OUT_VIEWS(2, , X, x)
OUT_VIEWS(3, , S, s)
