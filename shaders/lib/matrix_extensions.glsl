// matrix_extensions: what kernels on cooperative matrices need of the language.
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_bfloat16 : enable
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_cooperative_matrix : require
#ifdef COOPMAT2
#extension GL_NV_cooperative_matrix2 : require
#endif
