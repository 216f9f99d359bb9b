// This file is about rows of the user's tuning file, and the configurations that a tuner measures.
// The built-in tile sizes are in fwd_table.go, bwd_table.go and decode_table.go.

package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/shaders"
)

// From these sizes on a problem is large for any device: the best configuration no longer
// depends on the size.
const (
	manyRows = 1 << 17 // 8 blocks of 64 rows for each of 256 compute units
	manyKeys = 1 << 9  // several tiles of keys, or several blocks of rows: the last one matters little
)

// likeness says which problems a measurement stands for: problems of the same dtype, head_dim,
// quant and mask whose batch*num_heads*seq_q, seq_q and seq_kv are about as large.
func likeness(p *Problem) table.Likeness {
	type kind struct {
		dtype   dtype.DType
		headDim int
		causal  bool
		quant   dtype.Quant
	}
	return table.Likeness{
		Kind: kind{p.DType, p.HeadDim, p.Causal, p.Quant},
		Sizes: [4]table.Size{
			{N: float64(p.Batch) * float64(p.NumHeads) * float64(p.SeqQ), Enough: manyRows},
			{N: float64(p.SeqQ), Enough: manyKeys},
			{N: float64(p.SeqKV), Enough: manyKeys},
		},
	}
}

// sameButScale reports whether two problems are equal but for Scale.
func sameButScale(a, b *Problem) bool {
	like := *a
	like.Scale = b.Scale
	return like == *b
}

// validateProblem returns an error about a problem that no row is for.
func validateProblem(p *Problem) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if !p.Plain() {
		return fmt.Errorf("attention: %v: features have no rows", p)
	}
	return nil
}

// The modules of the passes on each path, modules for float32 among them.
var (
	fwdModules = [...][]string{
		CoopMat2: {"attention_fwd_coopmat2", "attention_fwd_direct", "attention_fwd_f32x2_coopmat2", "attention_combine"},
		CoopMat:  {"attention_fwd_coopmat", "attention_fwd_f32x2_coopmat", "attention_combine"},
		Scalar:   {"attention_fwd_scalar", "attention_combine"},
		Unfused:  {"attention_unfused_scores", "attention_unfused_softmax", "attention_unfused_values"},
	}
	fwdQuantModules = [...][]string{
		CoopMat2: {"attention_quantize", "attention_fwd_quant_coopmat2", "attention_combine"},
		CoopMat:  {"attention_quantize", "attention_fwd_quant_coopmat", "attention_combine"},
		Scalar:   {"attention_quantize", "attention_fwd_quant_scalar", "attention_combine"},
		Unfused:  nil,
	}
	bwdModules = [...][]string{
		CoopMat2: {
			"attention_bwd_dkv_coopmat2", "attention_bwd_dq_coopmat2", "attention_bwd_dkv_f32x2_coopmat2", "attention_bwd_dq_f32x2_coopmat2",
			"attention_bwd_fused_coopmat2", "attention_bwd_dq_coopmat2_stored", "attention_bwd_products", "attention_bwd_products_packed",
		},
		CoopMat: {
			"attention_bwd_dkv_coopmat", "attention_bwd_dq_coopmat", "attention_bwd_dkv_f32x2_coopmat", "attention_bwd_dq_f32x2_coopmat",
			"attention_bwd_fused_coopmat", "attention_bwd_dq_coopmat_stored", "attention_bwd_products", "attention_bwd_products_packed",
		},
		Scalar:  {"attention_bwd_dkv_scalar", "attention_bwd_dq_scalar"},
		Unfused: {"attention_unfused_bwd_scores", "attention_unfused_values", "attention_unfused_keys"},
	}
)

// moduleHash returns a hash of the modules of a path for tensors of a format.
func moduleHash(modules [Unfused + 1][]string, impl Impl, t dtype.DType) string {
	if int(impl) >= len(modules) {
		return ""
	}
	return shaders.Hash(t.Short(), modules[impl]...)
}
