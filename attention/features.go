package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// Kernels come in two modules (shaders/variants.go): one for plain problems, and one, named
// NAME_features, with the tensors and push constants of features behind the others. Specialization
// removes the features that a problem does not have.

// featureParams is struct Features of lib/params.glsl.
type featureParams struct {
	WindowLeft       int32   `glsl:"window_left"`
	WindowRight      int32   `glsl:"window_right"`
	SoftcapIn        float32 `glsl:"softcap_in"`
	SoftcapOut       float32 `glsl:"softcap_out"`
	Bias             place   `glsl:"bias"`
	SlopesOffset     uint32  `glsl:"slopes_offset"`
	SlopesStrideB    uint32  `glsl:"slopes_stride_b"`
	SinksOffset      uint32  `glsl:"sinks_offset"`
	KeyMaskOffset    uint32  `glsl:"key_mask_offset"`
	KeyMaskStrideB   uint32  `glsl:"key_mask_stride_b"`
	CuSeqlensQOffset uint32  `glsl:"cu_seqlens_q_offset"`
	CuSeqlensKOffset uint32  `glsl:"cu_seqlens_kv_offset"`
	TotalQ           uint32  `glsl:"total_q"`
	TotalKV          uint32  `glsl:"total_kv"`
	BottomRight      uint32  `glsl:"bottom_right"`
	DropBelow        uint32  `glsl:"drop_below"`
	KeepScale        float32 `glsl:"keep_scale"`
	SeedLo           uint32  `glsl:"seed_lo"`
	SeedHi           uint32  `glsl:"seed_hi"`
	StreamLo         uint32  `glsl:"stream_lo"`
	StreamHi         uint32  `glsl:"stream_hi"`
}

// featureSpec is the specialization of lib/params.glsl.
type featureSpec struct {
	ValueDim    uint32 `glsl:"VALUE_DIM"`
	WindowLeft  bool   `glsl:"WINDOW_LEFT"`
	WindowRight bool   `glsl:"WINDOW_RIGHT"`
	Softcap     bool   `glsl:"SOFTCAP"`
	ALiBi       bool   `glsl:"ALIBI"`
	Bias        bool   `glsl:"BIAS"`
	BiasF32     bool   `glsl:"BIAS_F32"`
	KeyMask     bool   `glsl:"KEY_MASK"`
	Sinks       bool   `glsl:"SINKS"`
	Varlen      bool   `glsl:"VARLEN"`
	Dropout     bool   `glsl:"DROPOUT"`
}

// withFeatures is the push-constant block of a kernel with features.
type withFeatures[P any] struct {
	Plain    P             `glsl:"plain"`
	Features featureParams `glsl:"features"`
}

// withFeatureSpec is the specialization of a kernel with features.
type withFeatureSpec[S any] struct {
	Plain    S
	Features featureSpec
}

func newFeatureSpec(p *Problem) featureSpec {
	return featureSpec{
		ValueDim:    uint32(p.ValueHeadDim()),
		WindowLeft:  p.Window.On && p.Window.Left != Unlimited,
		WindowRight: p.Causal || p.Window.On && p.Window.Right != Unlimited,
		Softcap:     p.Softcap != 0,
		ALiBi:       p.ALiBi != ALiBiOff,
		Bias:        p.Bias.On,
		BiasF32:     p.Bias.DType == dtype.Float32,
		KeyMask:     p.KeyMask,
		Sinks:       p.Sinks,
		Varlen:      p.Varlen.On,
		Dropout:     p.Dropout.On(),
	}
}

// featureTensors is the number of tensors in lib/sequence.glsl.
const featureTensors = 6

// boundFeatures are the arguments of features.
type boundFeatures struct {
	params  featureParams
	tensors [featureTensors]vk.Tensor
}

// newBoundFeatures returns the arguments for all batches, nil for a plain problem. Every binding needs a tensor: bindings
// that the kernel does not read get other.
func newBoundFeatures(p *Problem, in *Tensors, other vk.Tensor) *boundFeatures {
	if p.Plain() {
		return nil
	}
	mask, d := p.Mask(), p.Dropout
	f := &boundFeatures{
		tensors: [...]vk.Tensor{in.Bias, in.ALiBiSlopes, in.Sinks, in.KeyMask, in.CuSeqlensQ, in.CuSeqlensKV},
		params: featureParams{
			WindowLeft: int32(mask.Left), WindowRight: int32(mask.Right),
			Bias:         sharedPlace(in.Bias),
			SlopesOffset: uint32(in.ALiBiSlopes.Offset), SinksOffset: uint32(in.Sinks.Offset),
			KeyMaskOffset: uint32(in.KeyMask.Offset), KeyMaskStrideB: stride(&in.KeyMask, 0),
			CuSeqlensQOffset: uint32(in.CuSeqlensQ.Offset), CuSeqlensKOffset: uint32(in.CuSeqlensKV.Offset),
			TotalQ: uint32(p.Varlen.TotalQ), TotalKV: uint32(p.Varlen.TotalKV),
			DropBelow: d.Threshold(), KeepScale: float32(d.KeepScale()),
			SeedLo: uint32(d.Seed), SeedHi: uint32(d.Seed >> 32),
		},
	}
	for i := range f.tensors {
		if f.tensors[i].IsZero() {
			f.tensors[i] = other
		}
	}
	f.startAt(p, 0)
	if p.CausalAlign == BottomRight {
		f.params.BottomRight = 1
	}
	if p.Softcap != 0 {
		f.params.SoftcapIn = float32(2 / p.Softcap)
		f.params.SoftcapOut = float32(log2e * p.Softcap)
	}
	if p.ALiBi == ALiBiPerBatchHead {
		f.params.SlopesStrideB = stride(&in.ALiBiSlopes, 0)
	}
	return f
}

// startAt sets the stream of random numbers of the first head of a batch.
func (f *boundFeatures) startAt(p *Problem, batch int) {
	stream := p.Dropout.Offset + uint64(batch)*uint64(p.NumHeads)
	f.params.StreamLo, f.params.StreamHi = uint32(stream), uint32(stream>>32)
}

// skip advances the arguments, if there are any, from batch first to batch first+n.
func (f *boundFeatures) skip(p *Problem, first, n uint32) {
	if f == nil {
		return
	}
	f.params.Bias.skip(n)
	f.params.SlopesOffset += n * f.params.SlopesStrideB
	f.params.KeyMaskOffset += n * f.params.KeyMaskStrideB
	f.params.CuSeqlensQOffset += n
	f.params.CuSeqlensKOffset += n
	f.startAt(p, int(first+n))
}

// A kernelOf is one of the two modules of a file; the other is nil. P are the parameters of the
// plain module. Q are the parameters of the module with features, which featureParams follow.
type kernelOf[P, Q any] struct {
	plain    *vk.Kernel[P]
	features *vk.Kernel[withFeatures[Q]]
}

// newKernelOf returns the kernel of a module, which is plain or has features, to record in c (chips.Kernel).
func newKernelOf[P, Q, S any](c *vk.Cmd, name, element string, plain bool, spec S, features featureSpec, o vk.KernelOptions) (k kernelOf[P, Q]) {
	if plain {
		k.plain = chips.Kernel[P](c, name, element, spec, o)
	} else {
		k.features = chips.Kernel[withFeatures[Q]](c, name, element, withFeatureSpec[S]{spec, features}, o)
	}
	return k
}

// dispatch records a run of the kernel. A plain kernel ignores with and f.
func (k *kernelOf[P, Q]) dispatch(c *vk.Cmd, g vk.Groups, params P, with Q, f *boundFeatures, tensors ...vk.Tensor) {
	if k.features == nil {
		k.plain.Dispatch(c, g, params, tensors...)
		return
	}
	k.features.Dispatch(c, g, withFeatures[Q]{with, f.params}, append(tensors, f.tensors[:]...)...)
}

// A kernel has the same parameters in both modules.
type kernel[P any] struct{ kernelOf[P, P] }

// newKernel returns the kernel of a file that p needs, for an element type.
func newKernel[P, S any](c *vk.Cmd, name, element string, p *Problem, spec S, o vk.KernelOptions) kernel[P] {
	return kernel[P]{newKernelOf[P, P](c, moduleOf(name, p), element, p.Plain(), spec, newFeatureSpec(p), o)}
}

// moduleOf returns the name of the module of a file that p needs.
func moduleOf(name string, p *Problem) string {
	if !p.Plain() {
		name += "_features"
	}
	return name
}

func (k *kernel[P]) dispatch(c *vk.Cmd, g vk.Groups, params P, f *boundFeatures, tensors ...vk.Tensor) {
	k.kernelOf.dispatch(c, g, params, params, f, tensors...)
}

// unpack returns Q, K, V or O of a Varlen, (total, heads, dim), as (batch, heads, total, dim), and
// LSE, (heads, total), as (batch, heads, total). Kernels add the start of each batch.
func unpack(t vk.Tensor, p *Problem) vk.Tensor {
	switch len(t.Shape) {
	case 3:
		t.Shape = []int{p.Batch, t.Shape[1], t.Shape[0], t.Shape[2]}
		t.Strides = []int{0, t.Strides[1], t.Strides[0], t.Strides[2]}
	case 2:
		t.Shape, t.Strides = []int{p.Batch, t.Shape[0], t.Shape[1]}, []int{0, t.Strides[0], t.Strides[1]}
	}
	return t
}

// inSteps calls record for n batches or heads from a first one on: as many of all as the device takes in
// one dispatch.
func inSteps(d *vk.Device, all int, record func(first, n uint32)) {
	step := int(d.Caps().MaxWorkgroupCount[2])
	for first := 0; first < all; first += step {
		record(uint32(first), uint32(min(step, all-first)))
	}
}

// A place is where a tensor of batches, heads and rows lies, in elements: the members NAME_offset,
// NAME_stride_b, NAME_stride_h and NAME_stride_s of a push-constant block.
type place struct {
	Offset  uint32 `glsl:"_offset"`
	StrideB uint32 `glsl:"_stride_b"`
	StrideH uint32 `glsl:"_stride_h"`
	StrideS uint32 `glsl:"_stride_s"` // 0 of a tensor that has no rows
}

// placeOf returns where a tensor lies, zeros for the zero Tensor.
func placeOf(t vk.Tensor) place {
	if t.IsZero() {
		return place{}
	}
	return place{uint32(t.Offset), uint32(t.Strides[0]), uint32(t.Strides[1]), uint32(t.Strides[2])}
}

// sharedPlace is placeOf for a tensor whose axes of length 1 all indices share.
func sharedPlace(t vk.Tensor) place {
	return place{uint32(t.Offset), stride(&t, 0), stride(&t, 1), stride(&t, 2)}
}

// skip moves on by n batches.
func (x *place) skip(n uint32) { x.Offset += n * x.StrideB }

// stride is the stride of an axis along which there is more than one element; 0 of no tensor.
func stride(t *vk.Tensor, axis int) uint32 {
	if t.IsZero() || t.Shape[axis] == 1 {
		return 0
	}
	return uint32(t.Strides[axis])
}

// qkvParams are the strides of Q, K and V (lib/strides.glsl).
type qkvParams struct {
	Q place `glsl:"q"`
	K place `glsl:"k"`
	V place `glsl:"v"`
}

func newQKVParams(q, k, v vk.Tensor) qkvParams {
	return qkvParams{placeOf(q), placeOf(k), placeOf(v)}
}

// outParams are the strides of O and LSE.
type outParams struct {
	O   place `glsl:"o"`
	LSE place `glsl:"lse"`
}

// newOutParams takes the zero Tensor for an LSE that is left out.
func newOutParams(o, lse vk.Tensor) outParams { return outParams{placeOf(o), placeOf(lse)} }
