package bench

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// Naive is the path of attention that is a baseline, naive_attention.comp.
const Naive = "naive"

// naiveParams is the push-constant block of naive_attention.comp.
type naiveParams struct {
	SeqQ  uint32  `glsl:"seq_q"`
	SeqKV uint32  `glsl:"seq_kv"`
	Group uint32  `glsl:"group"`
	Shift int32   `glsl:"shift"`
	Scale float32 `glsl:"scale"`
}

// naiveSpec is the specialization of naive_attention.comp.
type naiveSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Causal        bool   `glsl:"CAUSAL"`
}

// Operations from which on the baseline is left out, since a call would take seconds.
const (
	naiveFLOPs    = 2e12
	naiveFLOPsCPU = 1e10
)

// naivePlan is the kit.Plan of the baseline.
type naivePlan struct{}

func (naivePlan) String() string    { return "a row per invocation" }
func (naivePlan) Workspace() int64  { return 0 }
func (naivePlan) Kernels() []string { return []string{"naive_attention"} }

// feasibleNaive returns why the baseline does not take p.
func feasibleNaive(caps *vk.Caps, p attention.Problem, pass Pass) error {
	limit := naiveFLOPs
	if caps.Type == vk.CPU {
		limit = naiveFLOPsCPU
	}
	switch {
	case pass != Forward:
		return fmt.Errorf("it has no backward pass")
	case !p.Plain():
		return fmt.Errorf("it has no features")
	case p.DType != dtype.Float32 && !caps.Storage16:
		return fmt.Errorf("%v needs 16-bit storage", p.DType)
	case !caps.ScalarBlockLayout:
		return fmt.Errorf("the device has no scalar block layout")
	case uint64(p.Batch) > uint64(caps.MaxWorkgroupCount[2]) || uint64(p.NumHeads) > uint64(caps.MaxWorkgroupCount[1]):
		return fmt.Errorf("more batches or heads than the device has workgroups")
	case flops(p) > limit:
		return fmt.Errorf("left out, a call would take seconds")
	case float64(elements(p.QShape())) > math.MaxUint32 || float64(elements(p.KShape())) > math.MaxUint32:
		return fmt.Errorf("more elements than it counts")
	}
	return nil
}

// recordNaive records a call of the baseline.
func recordNaive(c *vk.Cmd, t map[string]vk.Tensor, p attention.Problem) error {
	module, err := shaders.Get("naive_attention", p.DType.Short())
	if err != nil {
		return err
	}
	size := min(64, c.Device().Caps().MaxWorkgroupInvocations, c.Device().Caps().MaxWorkgroupSize[0])
	spec := naiveSpec{size, uint32(p.HeadDim), p.Causal}
	k, err := vk.CachedKernel[naiveParams](c.Device(), module.Name, module.SPIRV, spec, vk.KernelOptions{})
	if err != nil {
		return err
	}
	params := naiveParams{
		SeqQ: uint32(p.SeqQ), SeqKV: uint32(p.SeqKV), Group: uint32(p.NumHeads / p.NumKVHeads), Scale: float32(p.EffectiveScale()),
	}
	if p.CausalAlign == attention.BottomRight {
		params.Shift = int32(p.SeqKV - p.SeqQ)
	}
	groups := vk.Groups{X: (params.SeqQ + size - 1) / size, Y: uint32(p.NumHeads), Z: uint32(p.Batch)}
	k.Dispatch(c, groups, params, t["q"], t["k"], t["v"], t["o"], t["lse"])
	return c.Err()
}
