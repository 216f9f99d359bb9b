package attention

import (
	"reflect"

	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// StepTensors are the inputs and outputs of Step: the tensors of Decode, and the other tensors of
// Append.
//
//	tensor    of         shape                                       format
//	NewK                 (batch, num_kv_heads, new_keys, head_dim)   DType
//	NewV                 (batch, num_kv_heads, new_keys, value_dim)  DType
//	Cos, Sin  RoPE.Dims  (positions, dims/2), contiguous             float32
//
// Step also writes K, V and, with RoPE, Q.
type StepTensors struct {
	DecodeTensors
	NewK, NewV, Cos, Sin vk.Tensor
}

func (t *StepTensors) append(p *AppendProblem) AppendTensors {
	a := AppendTensors{
		NewK: t.NewK, NewV: t.NewV, K: t.K, V: t.V, KScale: t.KScale, VScale: t.VScale, Cos: t.Cos, Sin: t.Sin,
		SeqLens: t.SeqLens, BlockTable: t.BlockTable, CacheBatchIdx: t.CacheBatchIdx, State: t.State,
	}
	if p.RoPE.Dims > 0 {
		a.Q = t.Q
	}
	return a
}

// Step is Append and then Decode,
//
//	K[b, :, SeqLens[b] + i] = rotated(NewK[b, :, i])   i < NewKeys
//	V[b, :, SeqLens[b] + i] = NewV[b, :, i]
//	Q[b, :, i]              = rotated(Q[b, :, i])      i < SeqQ
//	O                       = softmax(Scale * Q * Kᵀ) * V: see Decode
//
// with the same bits in all tensors. Step is one kernel where one kernel is possible and was
// measured to be faster; DecodeConfig.Append says where, and forces either. Like Append, Step does
// not change SeqLens: Advance does, after the last layer. No sequence may have the place of a new
// key of another sequence.
//
// A tensor that Step writes (Q only with RoPE) shares memory with no other tensor. The other rules,
// errors and bits of State[0] are as in Append and Decode.
func Step(c *vk.Cmd, t StepTensors, p AppendProblem, opt Options) (err error) {
	defer c.Keep(&err)
	d := c.Device()
	config, _, err := chooseStep(d.Caps(), p, opt)
	if err != nil {
		return err
	}
	if err := config.checkStep(&t, &p, opt.Workspace); err != nil {
		return err
	}
	if err := config.checkLayout(d.Caps(), &p.DecodeProblem, askDevice(d)); err != nil {
		return err
	}
	if !config.Append {
		tensors := t.append(&p)
		if err := recordAppend(c, &tensors, &p); err != nil {
			return err
		}
		defer c.Scope()()
		return recordDecode(c, &t.DecodeTensors, &p.DecodeProblem, config, opt.Workspace)
	}
	defer c.Scope()()
	return recordStep(c, &t, &p, config, opt.Workspace)
}

// ChooseStep returns how Step runs p on a device. Its error wraps vk.ErrUnsupported if no kernels, or
// not the kernels of the forced path, handle p.
func ChooseStep(caps *vk.Caps, p AppendProblem, opt Options) (Plan, error) {
	c, origin, err := chooseStep(caps, p, opt)
	if err != nil {
		return Plan{}, err
	}
	kernels := c.kernels(&p.DecodeProblem)
	if !c.Append {
		kernels = append([]string{p.appendKernel() + "." + p.DType.Short()}, kernels...)
	}
	return Plan{Decode: c, Origin: origin, name: c.String(), bytes: c.partsBytes(p.DecodeProblem), kernels: kernels}, nil
}

// chooseStep returns the configuration for p, or the forced one if it is feasible, and its origin.
func chooseStep(caps *vk.Caps, p AppendProblem, opt Options) (c DecodeConfig, origin table.Origin, err error) {
	if err := p.Validate(); err != nil {
		return c, origin, err
	}
	forced := opt.DecodeConfig
	if forced != nil && forced.Append {
		apart := *forced
		apart.Append = false
		opt.DecodeConfig = &apart
	}
	if c, origin, err = chooseDecode(caps, p.DecodeProblem, opt); err != nil {
		return c, origin, err
	}
	together := c
	together.Append = true
	switch {
	case forced != nil && forced.Append:
		return together, origin, together.feasibleStep(caps, &p)
	case forced == nil && p.stepsFaster(c.Impl) && together.feasibleStep(caps, &p) == nil:
		return together, origin, nil
	}
	return c, origin, appendFeasible(caps, &p)
}

// stepsFaster reports whether one kernel was measured to be faster than two on an H200 (TUNING.md): for
// few sequences of few rows, where the start of a kernel is a part of the time that counts.
func (p *AppendProblem) stepsFaster(impl Impl) bool {
	return impl == CoopMat && p.Batch <= 4 && p.groupRows() <= 8 && p.NewKeys <= 8
}

// feasibleStep returns nil if one kernel can append and decode on a device.
func (c *DecodeConfig) feasibleStep(caps *vk.Caps, p *AppendProblem) error {
	bytes := uint32(reflect.TypeFor[stepParams]().Size())
	vec := p.decodeVec()
	switch {
	case c.Detour:
		return unsupported("step: no kernel of detour appends")
	case p.Cache != CacheSame:
		return unsupported("step: no kernel appends to a cache of %v and decodes", p.Cache)
	case p.groupRows() > c.Rows:
		return unsupported("step: rows=%d are less than the %d of a key head", c.Rows, p.groupRows())
	case appendWidth(&p.DecodeProblem, p.RoPE) != vec:
		return unsupported("step: rotary dims=%d do not consist of words of %d elements", p.RoPE.Dims, vec)
	case caps.MaxStorageBuffers < stepBuffers:
		return unsupported("step: %d storage buffers are more than the device's %d", stepBuffers, caps.MaxStorageBuffers)
	case caps.MaxPushConstantsBytes < bytes:
		return unsupported("step: %d bytes of push constants are more than the device's %d", bytes, caps.MaxPushConstantsBytes)
	}
	return nil
}

// checkStep returns an error that names the first tensor that does not fit the problem.
func (c *DecodeConfig) checkStep(t *StepTensors, p *AppendProblem, workspace *vk.Buffer) error {
	const name = "attention: step"
	a := t.append(p)
	inputs := append(make([]argument.Argument, 0, mostArguments), p.newArguments(&a)...)
	inputs = p.decodeInputs(inputs, &t.DecodeTensors)
	outputs, err := p.decodeOutputs(make([]argument.Argument, 0, mostArguments), name, &t.DecodeTensors, workspace, c.partsBytes(p.DecodeProblem))
	if err != nil {
		return err
	}
	qkv := p.cacheArguments(&t.DecodeTensors)
	cache := qkv[:]
	if p.RoPE.Dims == 0 {
		inputs, cache = append(inputs, cache[0]), cache[1:]
	}
	return p.check(name, &a, inputs, append(outputs, cache...))
}

// stepSpec is the specialization of attention_decode.comp with APPEND.
type stepSpec struct {
	Decode       decodeSpec
	Rotary       uint32 `glsl:"ROTARY"`
	Interleaved  bool   `glsl:"INTERLEAVED"`
	TableAligned bool   `glsl:"TABLE_ALIGNED"`
}

func newStepSpec(caps *vk.Caps, t *StepTensors, p *AppendProblem, config DecodeConfig) stepSpec {
	spec := newDecodeSpec(caps, &t.DecodeTensors, &p.DecodeProblem, config)
	spec.Aligned = spec.Aligned && argument.Aligned(p.decodeVec(), t.NewK, t.NewV)
	return stepSpec{
		Decode: spec, Rotary: uint32(p.RoPE.Dims), Interleaved: p.RoPE.Interleaved,
		TableAligned: tablesAligned(p.RoPE, &t.Cos, &t.Sin),
	}
}

// stepParams is the push-constant block of attention_decode.comp with APPEND.
type stepParams struct {
	decodeParams
	NewK      place  `glsl:"new_k"` // elements, like all that follow
	NewV      place  `glsl:"new_v"`
	CosOffset uint32 `glsl:"cos_offset"`
	SinOffset uint32 `glsl:"sin_offset"`
}

// stepBuffers is the number of its bindings.
const stepBuffers = decodeBuffers + 4

// recordStep records the one kernel for tensors that fit p.
func recordStep(c *vk.Cmd, t *StepTensors, p *AppendProblem, config DecodeConfig, parts *vk.Buffer) error {
	d := c.Device()
	vk.Narrow(&t.NewK, &t.NewV, &t.Cos, &t.Sin)
	tensors, err := decodeBindings(c, &t.DecodeTensors, &p.DecodeProblem, config, parts)
	if err != nil {
		return err
	}
	tensors = append(tensors, t.NewK, t.NewV, orElse(t.Cos, t.SeqLens), orElse(t.Sin, t.SeqLens))
	params := stepParams{
		decodeParams: newDecodeParams(d.Caps(), &t.DecodeTensors, &p.DecodeProblem, config),
		NewK:         placeOf(t.NewK), NewV: placeOf(t.NewV), CosOffset: uint32(t.Cos.Offset), SinOffset: uint32(t.Sin.Offset),
	}
	return dispatchDecode(c, config, &p.DecodeProblem, newStepSpec(d.Caps(), t, p, config), params, tensors)
}
