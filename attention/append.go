package attention

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// AppendTensors are the inputs and outputs of Append. Tensors that the problem does not have are
// zero Tensors. The others have any strides and a contiguous last axis.
//
//	tensor                 of         shape                                       format
//	NewK                              (batch, num_kv_heads, new_keys, head_dim)   DType
//	NewV                              (batch, num_kv_heads, new_keys, value_dim)  DType
//	K, V                              as in DecodeTensors, written
//	KScale, VScale         Cache      as in DecodeTensors; written with CacheQ8_0
//	Q                                 (batch, num_heads, seq_q, head_dim)         DType, rotated in place; may be left out
//	Cos, Sin               RoPE.Dims  (positions, dims/2), contiguous             float32
//	SeqLens, BlockTable,
//	CacheBatchIdx                     as in DecodeTensors
//	State                             as for Decode; only State[0] is used
//
// There are at least seq_kv positions. Q, NewK and NewV may be parts of the same rows, the output
// of one product with the weights of all three.
type AppendTensors struct {
	NewK, NewV, K, V, Q                vk.Tensor
	KScale, VScale                     vk.Tensor
	Cos, Sin                           vk.Tensor
	SeqLens, BlockTable, CacheBatchIdx vk.Tensor
	State                              vk.Tensor
}

// Append writes new keys and values to the end of sequences in a cache,
//
//	K[b, :, SeqLens[b] + i] = rotated(NewK[b, :, i])   i < NewKeys
//	V[b, :, SeqLens[b] + i] = NewV[b, :, i]
//	Q[b, :, i]              = rotated(Q[b, :, i])      i < SeqQ
//
// in the format of the cache (CacheFormat). The position of a key is its place in the sequence.
// Query i has the position that Decode gives it, SeqLens[b] + NewKeys - SeqQ + i, or 0 if that is
// negative. LeftPad changes no position, because a score depends on the distance of its positions
// alone. Append does not change SeqLens: Decode counts the new keys by NewKeys, and Advance adds
// them.
//
// The device reads lengths and tables, so a recorded Append runs again while the cache grows.
// Append leaves a sequence without room unchanged, with its queries, and skips keys whose page does
// not exist; State[0] then reports that (DecodeStatus).
//
// The error wraps vk.ErrUnsupported if the device cannot run the kernel, and names the argument if a
// tensor does not fit p.
func Append(c *vk.Cmd, t AppendTensors, p AppendProblem) (err error) {
	defer c.Keep(&err)
	d := c.Device()
	if err := p.Validate(); err != nil {
		return err
	}
	if err := appendFeasible(d.Caps(), &p); err != nil {
		return err
	}
	if err := checkAppend(&t, &p); err != nil {
		return err
	}
	return recordAppend(c, &t, &p)
}

// recordAppend records the kernel for tensors that fit p. It narrows t.
func recordAppend(c *vk.Cmd, t *AppendTensors, p *AppendProblem) error {
	d := c.Device()
	vk.Narrow(&t.NewK, &t.NewV, &t.K, &t.V, &t.KScale, &t.VScale, &t.Q, &t.Cos, &t.Sin, &t.SeqLens, &t.BlockTable, &t.CacheBatchIdx, &t.State)
	spec := newAppendSpec(d.Caps(), t, p)
	params, g := newAppendParams(d.Caps(), t, p, &spec)
	tensors := []vk.Tensor{t.NewK, t.NewV, t.K, t.V, orElse(t.Q, t.K), t.SeqLens, orElse(t.BlockTable, t.SeqLens), t.State,
		orElse(t.Cos, t.SeqLens), orElse(t.Sin, t.SeqLens), orElse(t.CacheBatchIdx, t.SeqLens)}
	if p.Cache == CacheSame {
		return dispatchAppend(c, p, spec, params, g, tensors)
	}
	return dispatchAppend(c, p, appendCache8Spec{spec, newCacheSpec(&p.DecodeProblem, &t.KScale)},
		appendCache8Params{params, newCacheParams(&p.DecodeProblem, &t.KScale, &t.VScale)}, g, append(tensors, orElse(t.KScale, t.SeqLens), orElse(t.VScale, t.SeqLens)))
}

// dispatchAppend records a kernel with its specialization, push constants and tensors.
func dispatchAppend[P any](c *vk.Cmd, p *AppendProblem, spec any, params P, g vk.Groups, tensors []vk.Tensor) error {
	kernel := chips.Kernel[P](c, p.appendKernel(), p.DType.Short(), spec, vk.KernelOptions{})
	kernel.Dispatch(c, g, params, tensors...)
	return c.Err()
}

// appendKernel returns the name of the module.
func (p *AppendProblem) appendKernel() string {
	if p.Cache != CacheSame {
		return "attention_append_cache8"
	}
	return "attention_append"
}

// appendFeasible returns an error if a device cannot append.
func appendFeasible(caps *vk.Caps, p *AppendProblem) error {
	params, buffers := uint32(reflect.TypeFor[appendParams]().Size()), uint32(appendBuffers)
	if p.Cache != CacheSame {
		params, buffers = uint32(reflect.TypeFor[appendCache8Params]().Size()), appendBuffers+cacheBuffers
	}
	rows := float64(max(p.NumHeads*p.SeqQ, p.NumKVHeads*p.NewKeys))
	switch {
	case caps.MaxStorageBuffers < buffers:
		return unsupported("append: %d storage buffers are more than the device's %d", buffers, caps.MaxStorageBuffers)
	case caps.MaxPushConstantsBytes < params:
		return unsupported("append: %d bytes of push constants are more than the device's %d", params, caps.MaxPushConstantsBytes)
	case rows*float64(max(p.HeadDim, p.ValueHeadDim())) > math.MaxInt32:
		return unsupported("append: a sequence has %.0f new rows, more elements than %d", rows, math.MaxInt32)
	}
	return nil
}

// checkAppend returns an error that names the first tensor that does not fit the problem.
func checkAppend(t *AppendTensors, p *AppendProblem) error {
	const name = "attention: append"
	if p.RoPE.Dims == 0 && !t.Q.IsZero() {
		return fmt.Errorf("%s: q is given, but nothing rotates it", name)
	}
	if len(t.State.Shape) != 1 || t.State.Shape[0] < 1 {
		return fmt.Errorf("%s: state has shape %v, want the shape that Decode takes, or (1)", name, t.State.Shape)
	}
	inputs := append(p.newArguments(t),
		argument.New("seq_lens", t.SeqLens, true, dtype.Int32, p.SeqLensShape()),
		argument.New("block_table", t.BlockTable, p.PageSize > 0, dtype.Int32, p.BlockTableShape()),
		argument.New("cache_batch_idx", t.CacheBatchIdx, p.CacheRows > 0, dtype.Int32, p.SeqLensShape()))
	outputs := []argument.Argument{
		argument.New("k", t.K, true, p.CacheDType(), p.KShape()),
		argument.New("v", t.V, true, p.CacheDType(), p.VShape()),
		argument.New("q", t.Q, !t.Q.IsZero(), p.DType, p.QShape()),
		argument.New("state", t.State.Slice(0, 0, 1), true, dtype.Int32, []int{1}),
	}
	return p.check(name, t, inputs, outputs)
}

// newArguments returns the tensors that Append and Step read, without the tables of the cache.
func (p *AppendProblem) newArguments(t *AppendTensors) []argument.Argument {
	rotates, positions := p.RoPE.Dims > 0, p.SeqKV
	if len(t.Cos.Shape) == 2 && t.Cos.Shape[0] > positions {
		positions = t.Cos.Shape[0]
	}
	angles := []int{positions, p.RoPE.Dims / 2}
	return []argument.Argument{
		argument.New("new_k", t.NewK, true, p.DType, p.NewKShape()),
		argument.New("new_v", t.NewV, true, p.DType, p.NewVShape()),
		argument.New("cos", t.Cos, rotates, dtype.Float32, angles),
		argument.New("sin", t.Sin, rotates, dtype.Float32, angles),
	}
}

// check returns an error unless the tensors of Append or Step, to which check adds the scales of the cache, fit
// the problem, and the cache, Cos and Sin are as kernels read them.
func (p *AppendProblem) check(name string, t *AppendTensors, inputs, outputs []argument.Argument) error {
	scales := p.scaleArguments(&t.KScale, &t.VScale)
	if p.Cache == CacheQ8_0 {
		outputs = append(outputs, scales...)
	} else {
		inputs = append(inputs, scales...)
	}
	if err := argument.Check(name, inputs, outputs); err != nil {
		return err
	}
	if err := p.checkCache(name, &t.K, &t.V, &t.KScale, &t.VScale); err != nil {
		return err
	}
	for _, table := range []struct {
		name string
		vk.Tensor
	}{{"cos", t.Cos}, {"sin", t.Sin}} {
		if p.RoPE.Dims > 0 && !table.Contiguous() {
			return fmt.Errorf("%s: %s has strides %v, want a contiguous table", name, table.name, table.Strides)
		}
	}
	return nil
}

// appendSpec is the specialization of attention_append.comp.
type appendSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	ValueDim      uint32 `glsl:"VALUE_DIM"`
	PageSize      uint32 `glsl:"PAGE_SIZE"`
	Aligned       bool   `glsl:"ALIGNED"`
	BatchIdx      bool   `glsl:"BATCH_IDX"`
	Rotary        uint32 `glsl:"ROTARY"`
	Interleaved   bool   `glsl:"INTERLEAVED"`
	Width         uint32 `glsl:"WIDTH"`
	TableAligned  bool   `glsl:"TABLE_ALIGNED"`
}

// appendCache8Spec is the specialization with CACHE8.
type appendCache8Spec struct {
	Append appendSpec
	Cache  cacheSpec
}

// appendThreads is the workgroup of attention_append where the device allows it.
const appendThreads = 256

func newAppendSpec(caps *vk.Caps, t *AppendTensors, p *AppendProblem) appendSpec {
	tensors := p.alignable([]vk.Tensor{t.NewK, t.NewV}, t.K, t.V)
	if !t.Q.IsZero() {
		tensors = append(tensors, t.Q)
	}
	return appendSpec{
		WorkgroupSize: min(appendThreads, caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0]),
		HeadDim:       uint32(p.HeadDim), ValueDim: uint32(p.ValueHeadDim()), PageSize: uint32(p.PageSize),
		Aligned: argument.Aligned(p.decodeVec(), tensors...), BatchIdx: p.CacheRows > 0,
		Rotary: uint32(p.RoPE.Dims), Interleaved: p.RoPE.Interleaved, Width: uint32(appendWidth(&p.DecodeProblem, p.RoPE)),
		TableAligned: tablesAligned(p.RoPE, &t.Cos, &t.Sin),
	}
}

// appendWidth returns how many elements of a row are rotated together: the elements in 16 bytes, or fewer where
// partners would be within them, or half in them.
func appendWidth(p *DecodeProblem, r RoPE) int {
	vec := p.decodeVec()
	switch {
	case r.Interleaved && r.Dims%vec != 0:
		return 2
	case !r.Interleaved && r.Dims/2%vec != 0:
		return 1
	}
	return vec
}

// tablesAligned reports whether rows of the tables begin at multiples of 16 bytes.
func tablesAligned(r RoPE, cos, sin *vk.Tensor) bool {
	return r.Dims/2%4 == 0 && cos.Offset%4 == 0 && sin.Offset%4 == 0
}

// items returns how many items a row of K, V and Q has, as the shader counts them.
func (s *appendSpec) items(p *DecodeProblem) (k, v, q int) {
	span := s.Rotary / 2
	if s.Interleaved {
		span = s.Rotary
	}
	q = int(span / s.Width)
	switch p.Cache {
	case CacheE4M3:
		return p.HeadDim / cacheAlignment, p.ValueHeadDim() / cacheAlignment, q
	case CacheQ8_0:
		return p.HeadDim / QuantBlock, p.ValueHeadDim() / QuantBlock, q
	}
	return q + int((s.HeadDim-s.Rotary)/s.Width), int(s.ValueDim) / p.decodeVec(), q
}

// appendBuffers is the number of bindings of attention_append.comp.
const appendBuffers = 11

// appendParams is the push-constant block of attention_append.comp.
type appendParams struct {
	Batch             uint32 `glsl:"batch"`
	SeqQ              uint32 `glsl:"seq_q"`
	Heads             uint32 `glsl:"heads"`
	KVHeads           uint32 `glsl:"kv_heads"`
	NewKeys           int32  `glsl:"new_keys"`
	Capacity          int32  `glsl:"capacity"`
	Pages             uint32 `glsl:"pages"`
	KGroups           uint32 `glsl:"k_groups"`
	VGroups           uint32 `glsl:"v_groups"`
	NewK              place  `glsl:"new_k"` // elements, like all that follow
	NewV              place  `glsl:"new_v"`
	K                 place  `glsl:"k"`
	V                 place  `glsl:"v"`
	Q                 place  `glsl:"q"`
	SeqLensOffset     uint32 `glsl:"seq_lens_offset"`
	BlockTableOffset  uint32 `glsl:"block_table_offset"`
	BlockTableStrideB uint32 `glsl:"block_table_stride_b"`
	StateOffset       uint32 `glsl:"state_offset"`
	CosOffset         uint32 `glsl:"cos_offset"`
	SinOffset         uint32 `glsl:"sin_offset"`
	BatchIdxOffset    uint32 `glsl:"batch_idx_offset"`
}

// appendCache8Params is the push-constant block with CACHE8.
type appendCache8Params struct {
	appendParams
	cacheParams
}

func newAppendParams(caps *vk.Caps, t *AppendTensors, p *AppendProblem, spec *appendSpec) (appendParams, vk.Groups) {
	k, v, q := spec.items(&p.DecodeProblem)
	rows, most := p.NumKVHeads*p.NewKeys, caps.MaxWorkgroupCount[0]/3
	kGroups, vGroups := min(groups(rows*k, int(spec.WorkgroupSize)), most), min(groups(rows*v, int(spec.WorkgroupSize)), most)
	qGroups := uint32(0)
	if !t.Q.IsZero() {
		qGroups = min(groups(p.NumHeads*p.SeqQ*q, int(spec.WorkgroupSize)), most)
	}
	params := appendParams{
		Batch: uint32(p.Batch), SeqQ: uint32(p.SeqQ), Heads: uint32(p.NumHeads), KVHeads: uint32(p.NumKVHeads),
		NewKeys: int32(p.NewKeys), Capacity: int32(p.SeqKV), Pages: uint32(p.slots()), KGroups: kGroups, VGroups: vGroups,
		NewK: placeOf(t.NewK), NewV: placeOf(t.NewV), K: placeOf(t.K), V: placeOf(t.V), Q: placeOf(t.Q),
		SeqLensOffset:    uint32(t.SeqLens.Offset),
		BlockTableOffset: uint32(t.BlockTable.Offset), BlockTableStrideB: stride(&t.BlockTable, 0),
		StateOffset: uint32(t.State.Offset), CosOffset: uint32(t.Cos.Offset), SinOffset: uint32(t.Sin.Offset), BatchIdxOffset: uint32(t.CacheBatchIdx.Offset),
	}
	return params, vk.Groups{X: kGroups + vGroups + qGroups, Y: min(uint32(p.Batch), caps.MaxWorkgroupCount[1])}
}

// Advance adds keys to all lengths, a contiguous int32 vector on the device. It lets a recorded
// step run again on longer sequences. A negative number removes keys.
func Advance(c *vk.Cmd, seqLens vk.Tensor, keys int) (err error) {
	defer c.Keep(&err)
	if keys < -math.MaxInt32 || keys > math.MaxInt32 {
		return fmt.Errorf("attention: advance: keys=%d is not from %d to %d", keys, -math.MaxInt32, math.MaxInt32)
	}
	if len(seqLens.Shape) != 1 {
		return fmt.Errorf("attention: advance: seq_lens has shape %v, want (batch)", seqLens.Shape)
	}
	if err := argument.Check("attention: advance", nil, []argument.Argument{argument.New("seq_lens", seqLens, true, dtype.Int32, seqLens.Shape)}); err != nil {
		return err
	}
	vk.Narrow(&seqLens)
	kernel := chips.Kernel[advanceParams](c, "attention_advance", "", advanceSpec{WorkgroupSize: advanceThreads}, vk.KernelOptions{})
	batch := seqLens.Shape[0]
	kernel.Dispatch(c, chips.Groups(c.Device().Caps(), batch, advanceThreads),
		advanceParams{Batch: uint32(batch), Keys: int32(keys), SeqLensOffset: uint32(seqLens.Offset)}, seqLens)
	return c.Err()
}

// advanceThreads is the largest workgroup size that every device has.
const advanceThreads = 128

// advanceSpec is the specialization of attention_advance.comp.
type advanceSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
}

// advanceParams is the push-constant block of attention_advance.comp.
type advanceParams struct {
	Batch         uint32 `glsl:"batch"`
	Keys          int32  `glsl:"keys"`
	SeqLensOffset uint32 `glsl:"seq_lens_offset"` // elements
}

// Bits of State[0], as lib/cache_status.glsl has them.
const (
	badLength = 1 << iota
	badPage
	badBatch
)

// DecodeStatus returns the errors that Append and Decode found on the device since
// State[0] was last cleared, and clears it. The error says which rule of p the lengths and tables
// broke; nil is no error. It waits for all commands that have been started.
func DecodeStatus(ctx context.Context, state vk.Tensor, p DecodeProblem) error {
	if len(state.Shape) != 1 || state.Shape[0] < 1 || state.DType != dtype.Int32 {
		return fmt.Errorf("attention: decode: state is %v of shape %v, want an int32 vector", state.DType, state.Shape)
	}
	word, first := make([]int32, 1), state.Slice(0, 0, 1)
	if err := first.DownloadInts(ctx, word); err != nil {
		return err
	}
	bits := word[0]
	if bits == 0 {
		return nil
	}
	if err := first.Zero(ctx); err != nil {
		return err
	}
	var list []error
	if bits&badLength != 0 {
		list = append(list, fmt.Errorf("attention: decode: a sequence is longer than its cache of %d keys, or its length is negative", p.SeqKV))
	}
	if bits&badPage != 0 {
		list = append(list, fmt.Errorf("attention: decode: a sequence has keys in a page that is none of the cache's %d", p.Pages))
	}
	if bits&badBatch != 0 {
		list = append(list, fmt.Errorf("attention: decode: cache_batch_idx has a row that is none of the cache's %d", p.cacheRows()))
	}
	return errors.Join(list...)
}
