package shaders

import (
	"slices"
	"strings"
)

// A Variant is one SPIR-V module: one kernel file compiled with one set of
// macros. Macros are the element type, COOPMAT2, F32X2, FEATURES, GROUP, PACKED, STORE, MATRIX,
// BIAS, QUANT, which is Q and K in 8 bits, and CACHE8, which is a cache of keys and values in 8 bits; everything
// else that shapes the code is a specialization constant, set by the host at run time.
//
// FEATURES makes a second kernel of a file, NAME_features, for what attention may
// have beyond a causal mask. Which of it a call has is a specialization constant,
// too, but the tensors and push constants that it takes are there in every call of
// the module: the first kernel does without. GROUP likewise makes NAME_group, which has
// many products of different sizes in one launch, and a table of them, and PACKED
// NAME_packed, whose B is in the order of gemm_pack.comp, and STORE NAME_stored, which stores
// P and dX beside.
//
// A file NAME_matrix.comp makes NAME_coopmat; with COOPMAT2, which is what
// VK_NV_cooperative_matrix2 has beyond VK_KHR_cooperative_matrix, NAME_coopmat2; and with
// F32X2, which is float32 tensors on matrices of float16, two for each operand,
// NAME_f32x2_coopmat and NAME_f32x2_coopmat2.
type Variant struct {
	Kernel  string   // the module's name without the type
	File    string   // name of the source
	Type    string   // short name of the element type ("f16", "bf16", "f32"); "" when the kernel has only one
	Defines []string // NAME or NAME=VALUE, passed as -D
	Env     string   // target environment: "vulkan1.2" or "vulkan1.3"
}

// Name is the module's name, and the name of its file in spv/ without .spv:
// kernel.type, or kernel where there is only one type.
func (v Variant) Name() string {
	if v.Type == "" {
		return v.Kernel
	}
	return v.Kernel + "." + v.Type
}

// variants is everything that is compiled. After a change, run `make shaders`.
var variants = slices.Concat(
	withFeatures(matrix("attention_fwd")),
	withFeatures(f32x2("attention_fwd")),
	withFeatures(quant("attention_fwd")),
	withFeatures(forEach("attention_fwd_scalar", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(forEach("attention_quantize", "vulkan1.2", "f16", "bf16")),
	withFeatures(as(forEach("attention_fwd_scalar", "vulkan1.2", "f16", "bf16"), "attention_fwd_quant_scalar", "QUANT")),
	as(forEach("attention_fwd_direct", "vulkan1.3", "f16", "bf16"), "attention_fwd_direct", "COOPMAT2"),
	forEach("attention_combine", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("attention_decode", "vulkan1.2", "f16", "bf16", "f32"),
	as(forEach("attention_decode", "vulkan1.3", "f16", "bf16"), "attention_decode_coopmat", "MATRIX"),
	as(forEach("attention_decode", "vulkan1.3", "f16", "bf16"), "attention_decode_tiles_coopmat", "MATRIX", "TILES"),
	as(forEach("attention_decode", "vulkan1.2", "f16", "bf16"), "attention_decode_cache8", "CACHE8"),
	as(forEach("attention_decode", "vulkan1.3", "f16"), "attention_decode_cache8_tiles_coopmat", "MATRIX", "TILES", "CACHE8"),
	as(forEach("attention_decode", "vulkan1.3", "f16", "bf16"), "attention_decode_cache8_coopmat", "MATRIX", "CACHE8"),
	as(forEach("attention_decode", "vulkan1.2", "f16", "bf16", "f32"), "attention_decode_append", "APPEND"),
	as(forEach("attention_decode", "vulkan1.3", "f16", "bf16"), "attention_decode_append_coopmat", "MATRIX", "APPEND"),
	forEach("attention_append", "vulkan1.2", "f16", "bf16", "f32"),
	as(forEach("attention_append", "vulkan1.2", "f16", "bf16"), "attention_append_cache8", "CACHE8"),
	single("attention_advance"),
	withFeatures(forEach("attention_unfused_scores", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(single("attention_unfused_softmax")),
	withFeatures(forEach("attention_unfused_values", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(matrix("attention_bwd_dkv")),
	withFeatures(matrix("attention_bwd_dq")),
	withFeatures(f32x2("attention_bwd_dkv")),
	withFeatures(f32x2("attention_bwd_dq")),
	withFeatures(stored(matrix("attention_bwd_dq"))),
	withFeatures(forEach("attention_bwd_products", "vulkan1.3", "f16", "bf16")),
	withFeatures(packedOnly(forEach("attention_bwd_products", "vulkan1.3", "f16", "bf16"))),
	matrix("attention_bwd_fused"),
	forEach("attention_bwd_delta", "vulkan1.2", "f16", "bf16", "f32"),
	withFeatures(forEach("attention_bwd_dkv_scalar", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(forEach("attention_bwd_dq_scalar", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(forEach("attention_unfused_bwd_scores", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(forEach("attention_unfused_keys", "vulkan1.2", "f16", "bf16", "f32")),
	featuresOnly(forEach("attention_bwd_dbias", "vulkan1.2", "f16", "bf16", "f32")),
	featuresOnly(forEach("attention_bwd_dbias_stored", "vulkan1.2", "f16", "bf16")),
	featuresOnly(single("attention_bwd_dsinks")),
	forEach("attention_bwd_sum", "vulkan1.2", "f16", "bf16", "f32"),
	withGroup(forEach("gemm_coopmat", "vulkan1.3", "f16", "bf16")),
	packedOnly(forEach("gemm_coopmat", "vulkan1.3", "f16", "bf16")),
	forEach("gemm_skinny", "vulkan1.3", "f16", "bf16"),
	packedOnly(forEach("gemm_skinny", "vulkan1.3", "f16", "bf16")),
	forEach("gemm_skinny_bwd", "vulkan1.3", "f16", "bf16"),
	forEach("gemm_skinny_dsilu", "vulkan1.2", "f16", "bf16"),
	forEach("gemm_mixture", "vulkan1.3", "f16", "bf16"),
	forEach("gemm_pack", "vulkan1.3", "f16", "bf16"),
	forEach("gemm_pair", "vulkan1.3", "f16", "bf16"),
	withGroup(forEach("gemm_scalar", "vulkan1.2", "f16", "bf16", "f32")),
	forEach("gemm_gemv", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("gemm_gemv_coopmat", "vulkan1.3", "f16", "bf16"),
	single("gemm_combine", "gemm_align"),
	single("gemm_amax", "gemm_f32x2"),
	forEach("norm_fwd", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("norm_bwd", "vulkan1.2", "f16", "bf16", "f32"),
	as(forEach("norm_fwd", "vulkan1.2", "f16", "bf16", "f32"), "norm_fwd_bias", "BIAS"),
	as(forEach("norm_bwd", "vulkan1.2", "f16", "bf16", "f32"), "norm_bwd_bias", "BIAS"),
	forEach("sum_rows", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("glu_fwd", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("glu_bwd", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("normlinear", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("decoder", "vulkan1.2", "f16", "bf16"),
	forEach("gmm_fwd", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("gmm_bwd", "vulkan1.2", "f16", "bf16", "f32"),
	single("gmm_merge"),
	single("embed_fwd", "embed_sort", "embed_bwd"),
	single("xent_total", "xent_rows"),
	forEach("adamw", "vulkan1.2", "f16", "bf16"),
	forEach("adamw_norm", "vulkan1.2", "f16", "bf16"),
	single("adamw_prepare"),
	forEach("quantize", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("rope", "vulkan1.2", "f16", "bf16", "f32"),
	single("sample"),
	forEach("dropout", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("matrix_layout", "vulkan1.3", "f16", "bf16"),
	forEach("matrix_right", "vulkan1.3", "f16", "bf16"),
	forEach("micro_matrix", "vulkan1.3", "f16", "bf16", "int8"),
	single("micro_fma", "micro_copy"),
	single("poison"),
)

// single returns the rows of kernels that have one element type.
func single(kernels ...string) []Variant {
	var rows []Variant
	for _, k := range kernels {
		rows = append(rows, Variant{Kernel: k, File: k + ".comp", Env: "vulkan1.2"})
	}
	return rows
}

// forEach returns the rows of a kernel that is compiled once for each element
// type, with the macro of lib/element.glsl.
func forEach(kernel, env string, types ...string) []Variant {
	var rows []Variant
	for _, t := range types {
		rows = append(rows, Variant{Kernel: kernel, File: kernel + ".comp", Type: t, Defines: []string{"ELEM_" + strings.ToUpper(t)}, Env: env})
	}
	return rows
}

// matrix returns the rows of NAME_matrix.comp on 16-bit tensors.
func matrix(name string) []Variant {
	rows := forEach(name+"_matrix", "vulkan1.3", "f16", "bf16")
	return slices.Concat(as(rows, name+"_coopmat2", "COOPMAT2"), as(rows, name+"_coopmat"))
}

// f32x2 returns the rows of NAME_matrix.comp on float32 tensors.
func f32x2(name string) []Variant {
	rows := []Variant{{File: name + "_matrix.comp", Type: "f32", Defines: []string{"ELEM_F16", "F32X2"}, Env: "vulkan1.3"}}
	return slices.Concat(as(rows, name+"_f32x2_coopmat2", "COOPMAT2"), as(rows, name+"_f32x2_coopmat"))
}

// quant returns the rows of NAME_matrix.comp with Q and K in 8 bits.
func quant(name string) []Variant {
	rows := forEach(name+"_matrix", "vulkan1.3", "f16", "bf16")
	return slices.Concat(as(rows, name+"_quant_coopmat2", "QUANT", "COOPMAT2"), as(rows, name+"_quant_coopmat", "QUANT"))
}

// as returns copies of rows for a kernel of another name, with more macros.
func as(rows []Variant, kernel string, macros ...string) []Variant {
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].Kernel = kernel
		rows[i].Defines = slices.Concat(rows[i].Defines, macros)
	}
	return rows
}

// withFeatures returns rows and the same rows with FEATURES.
func withFeatures(rows []Variant) []Variant { return with(rows, "_features", "FEATURES") }

func withGroup(rows []Variant) []Variant { return with(rows, "_group", "GROUP") }

// with returns rows and the same rows with one more macro, named with a suffix.
func with(rows []Variant, suffix, macro string) []Variant {
	for _, v := range rows {
		v.Kernel += suffix
		v.Defines = append(slices.Clone(v.Defines), macro)
		rows = append(rows, v)
	}
	return rows
}

// featuresOnly returns rows with FEATURES, of a kernel that no plain problem needs.
func featuresOnly(rows []Variant) []Variant { return withFeatures(rows)[len(rows):] }

func packedOnly(rows []Variant) []Variant {
	return with(rows, "_packed", "PACKED")[len(rows):]
}

func stored(rows []Variant) []Variant { return with(rows, "_stored", "STORE")[len(rows):] }

// Variants returns the table of everything that is compiled.
func Variants() []Variant { return append([]Variant(nil), variants...) }
