package shaders

// A Variant is one SPIR-V module: one kernel file compiled with one set of
// macros. Only the element type is a macro; everything else that shapes the code
// is a specialization constant, set by the host at run time.
type Variant struct {
	Kernel  string   // file name without .comp
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

// variants is everything that is compiled. After a change, run `make shaders`.
var variants = []Variant{}

// Variants returns the table of everything that is compiled.
func Variants() []Variant { return append([]Variant(nil), variants...) }
