package shaders

import (
	"slices"
	"strings"
)

// A Variant is one SPIR-V module: one kernel file compiled with one set of
// macros. Macros are the element type, FEATURES, GROUP and FRAGMENTS; everything else that shapes
// the code is a specialization constant, set by the host at run time.
//
// FEATURES makes a second kernel of a file, NAME_features, for what attention may
// have beyond a causal mask. Which of it a call has is a specialization constant,
// too, but the tensors and push constants that it takes are there in every call of
// the module: the first kernel does without. GROUP likewise makes NAME_group, which has
// many products of different sizes in one launch, and a table of them, and FRAGMENTS
// NAME_fragmented, whose B is in the order of gemm_fragments.comp.
type Variant struct {
	Kernel  string   // file name without .comp, and _features after it with FEATURES, _group with GROUP, _fragmented with FRAGMENTS
	Type    string   // short name of the element type ("f16", "bf16", "f32"); "" when the kernel has only one
	Defines []string // NAME or NAME=VALUE, passed as -D
	Env     string   // target environment: "vulkan1.2" or "vulkan1.3"
}

// Name is the module's name, and that of its file in spv/ without .spv:
// kernel.type, or kernel where there is only one type.
func (v Variant) Name() string {
	if v.Type == "" {
		return v.Kernel
	}
	return v.Kernel + "." + v.Type
}

// File is the name of the source.
func (v Variant) File() string {
	name := v.Kernel
	for _, suffix := range []string{featuresSuffix, groupSuffix, fragmentedSuffix} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name + ".comp"
}

const (
	featuresSuffix   = "_features"
	groupSuffix      = "_group"
	fragmentedSuffix = "_fragmented"
)

// variants is everything that is compiled. After a change, run `make shaders`.
var variants = slices.Concat(
	withFeatures(forEach("attention_fwd_coopmat2", "vulkan1.3", "f16", "bf16")),
	withFeatures(forEach("attention_fwd_coopmat", "vulkan1.3", "f16", "bf16")),
	withFeatures(split("attention_fwd_split_coopmat2")),
	withFeatures(split("attention_fwd_split_coopmat")),
	withFeatures(forEach("attention_fwd_scalar", "vulkan1.2", "f16", "bf16", "f32")),
	forEach("attention_combine", "vulkan1.2", "f16", "bf16", "f32"),
	withFeatures(forEach("attention_unfused_scores", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures([]Variant{{Kernel: "attention_unfused_softmax", Env: "vulkan1.2"}}),
	withFeatures(forEach("attention_unfused_values", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(forEach("attention_bwd_dkv_coopmat2", "vulkan1.3", "f16", "bf16")),
	withFeatures(forEach("attention_bwd_dkv_coopmat", "vulkan1.3", "f16", "bf16")),
	withFeatures(forEach("attention_bwd_dq_coopmat2", "vulkan1.3", "f16", "bf16")),
	withFeatures(forEach("attention_bwd_dq_coopmat", "vulkan1.3", "f16", "bf16")),
	withFeatures(split("attention_bwd_dkv_split_coopmat2")),
	withFeatures(split("attention_bwd_dkv_split_coopmat")),
	withFeatures(split("attention_bwd_dq_split_coopmat2")),
	withFeatures(split("attention_bwd_dq_split_coopmat")),
	forEach("attention_bwd_fused_coopmat2", "vulkan1.3", "f16", "bf16"),
	forEach("attention_bwd_fused_coopmat", "vulkan1.3", "f16", "bf16"),
	forEach("attention_bwd_fused_sum", "vulkan1.2", "f16", "bf16"),
	forEach("attention_bwd_delta", "vulkan1.2", "f16", "bf16", "f32"),
	withFeatures(forEach("attention_bwd_dkv_scalar", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(forEach("attention_bwd_dq_scalar", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(forEach("attention_unfused_bwd_scores", "vulkan1.2", "f16", "bf16", "f32")),
	withFeatures(forEach("attention_unfused_keys", "vulkan1.2", "f16", "bf16", "f32")),
	featuresOnly(forEach("attention_bwd_dbias", "vulkan1.2", "f16", "bf16", "f32")),
	featuresOnly([]Variant{{Kernel: "attention_bwd_dsinks", Env: "vulkan1.2"}}),
	forEach("attention_bwd_sum", "vulkan1.2", "f16", "bf16", "f32"),
	withGroup(forEach("gemm_coopmat", "vulkan1.3", "f16", "bf16")),
	fragmentedOnly(forEach("gemm_coopmat", "vulkan1.3", "f16", "bf16")),
	forEach("gemm_narrow", "vulkan1.3", "f16", "bf16"),
	forEach("gemm_narrow_bwd", "vulkan1.3", "f16", "bf16"),
	forEach("gemm_narrow_dsilu", "vulkan1.2", "f16", "bf16"),
	forEach("gemm_mixture", "vulkan1.3", "f16", "bf16"),
	forEach("gemm_fragments", "vulkan1.3", "f16", "bf16"),
	forEach("gemm_pair", "vulkan1.3", "f16", "bf16"),
	withGroup(forEach("gemm_scalar", "vulkan1.2", "f16", "bf16", "f32")),
	[]Variant{{Kernel: "gemm_combine", Env: "vulkan1.2"}, {Kernel: "gemm_pack", Env: "vulkan1.2"}},
	[]Variant{{Kernel: "gemm_tops", Env: "vulkan1.2"}, {Kernel: "gemm_parts", Env: "vulkan1.2"}},
	forEach("norm_fwd", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("norm_bwd", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("sum_rows", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("gmm_fwd", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("gmm_bwd", "vulkan1.2", "f16", "bf16", "f32"),
	[]Variant{{Kernel: "gmm_merge", Env: "vulkan1.2"}},
	forEach("adamw", "vulkan1.2", "f16", "bf16"),
	forEach("adamw_norm", "vulkan1.2", "f16", "bf16"),
	[]Variant{{Kernel: "adamw_prepare", Env: "vulkan1.2"}},
	forEach("matrix_layout", "vulkan1.3", "f16", "bf16"),
	forEach("naive_attention", "vulkan1.2", "f16", "bf16", "f32"),
	forEach("micro_matrix", "vulkan1.3", "f16", "bf16"),
	[]Variant{{Kernel: "micro_fma", Env: "vulkan1.2"}, {Kernel: "micro_copy", Env: "vulkan1.2"}},
	[]Variant{{Kernel: "poison", Env: "vulkan1.2"}},
)

// forEach returns the rows of a kernel that is compiled once for each element
// type, with the macro of lib/element.glsl.
func forEach(kernel, env string, types ...string) []Variant {
	var rows []Variant
	for _, t := range types {
		rows = append(rows, Variant{Kernel: kernel, Type: t, Defines: []string{"ELEM_" + strings.ToUpper(t)}, Env: env})
	}
	return rows
}

// split returns the row of a kernel on float32 tensors whose matrices are of
// float16.
func split(kernel string) []Variant {
	return []Variant{{Kernel: kernel, Type: "f32", Defines: []string{"ELEM_F16"}, Env: "vulkan1.3"}}
}

// withFeatures returns rows and the same rows with FEATURES.
func withFeatures(rows []Variant) []Variant { return with(rows, featuresSuffix, "FEATURES") }

// withGroup returns rows and the same rows with GROUP.
func withGroup(rows []Variant) []Variant { return with(rows, groupSuffix, "GROUP") }

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

// fragmentedOnly returns rows with FRAGMENTS.
func fragmentedOnly(rows []Variant) []Variant {
	return with(rows, fragmentedSuffix, "FRAGMENTS")[len(rows):]
}

// Variants returns the table of everything that is compiled.
func Variants() []Variant { return append([]Variant(nil), variants...) }
