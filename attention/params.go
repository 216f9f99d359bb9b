package attention

import "github.com/flashvk/flashvk/vk"

// qkvParams is where Q, K and V lie, in the push-constant blocks of both passes: in elements.
type qkvParams struct {
	QOffset  uint32 `glsl:"q_offset"`
	QStrideB uint32 `glsl:"q_stride_b"`
	QStrideH uint32 `glsl:"q_stride_h"`
	QStrideS uint32 `glsl:"q_stride_s"`
	KOffset  uint32 `glsl:"k_offset"`
	KStrideB uint32 `glsl:"k_stride_b"`
	KStrideH uint32 `glsl:"k_stride_h"`
	KStrideS uint32 `glsl:"k_stride_s"`
	VOffset  uint32 `glsl:"v_offset"`
	VStrideB uint32 `glsl:"v_stride_b"`
	VStrideH uint32 `glsl:"v_stride_h"`
	VStrideS uint32 `glsl:"v_stride_s"`
}

func newQKVParams(q, k, v vk.Tensor) qkvParams {
	return qkvParams{
		QOffset: uint32(q.Offset), QStrideB: uint32(q.Strides[0]), QStrideH: uint32(q.Strides[1]), QStrideS: uint32(q.Strides[2]),
		KOffset: uint32(k.Offset), KStrideB: uint32(k.Strides[0]), KStrideH: uint32(k.Strides[1]), KStrideS: uint32(k.Strides[2]),
		VOffset: uint32(v.Offset), VStrideB: uint32(v.Strides[0]), VStrideH: uint32(v.Strides[1]), VStrideS: uint32(v.Strides[2]),
	}
}
