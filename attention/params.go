package attention

import "github.com/flashvk/flashvk/vk"

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
