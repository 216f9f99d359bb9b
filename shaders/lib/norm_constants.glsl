// norm_constants: the specialization constants 0 to 10 of the kernels of layer
// normalization: the division of rows among the invocations of a workgroup, and the rows.

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;
layout(constant_id = 1) const uint TEAM = 128;              // invocations that share a row
layout(constant_id = 2) const bool SUBGROUP_TEAM = false;   // they are a subgroup; else the workgroup
layout(constant_id = 3) const uint LOADS = 1;               // vectors of a row for each; 0: see lib/norm.glsl
layout(constant_id = 4) const bool CENTERED = true;         // LayerNorm, not RMSNorm
layout(constant_id = 5) const bool WEIGHT_F32 = true;
layout(constant_id = 6) const bool WEIGHT_ALIGNED = true;   // w_offset and b_offset are multiples of 4
layout(constant_id = 7) const bool ALIGNED = true;          // offsets and strides are multiples of VEC
layout(constant_id = 8) const bool EXACT = false;           // cols is LOADS * TEAM * VEC
layout(constant_id = 9) const bool RESIDUAL = false;         // sum is x + residual, and dsum its gradient
layout(constant_id = 10) const bool HOLD_WEIGHTS = true;     // and the bias, in registers; else they are loaded for each row

// COLUMN_BUFFERS binds a tensor of one row, f32 or ELEM.
#define COLUMN_BUFFERS(at, W, w)                                                    \
    layout(binding = at, scalar) readonly buffer W { float w##_f32[]; };            \
    layout(binding = at, scalar) readonly buffer W##4 { vec4 w##_f32x4[]; };        \
    layout(binding = at, scalar) readonly buffer W##Elem { ELEM w##_elem[]; };      \
    layout(binding = at, scalar) readonly buffer W##Elem4 { ELEM4 w##_elem4[]; };
