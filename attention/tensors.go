package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// Tensors are the inputs and outputs of Forward; Backward reads them. The tensors of features that
// are off are zero Tensors. The others have any strides and a contiguous last axis.
//
//	tensor                   feature      shape                                          format
//	Q                                     (batch, num_heads, seq_q, head_dim)            DType
//	K                                     (batch, num_kv_heads, seq_kv, head_dim)        DType
//	V                                     (batch, num_kv_heads, seq_kv, value_dim)       DType
//	O                                     (batch, num_heads, seq_q, value_dim)           DType, written
//	LSE                                   (batch, num_heads, seq_q)                      float32, written; Forward may leave it out
//	Bias                     Bias.On      (batch or 1, num_heads or 1, seq_q or 1, seq_kv)  Bias.DType
//	ALiBiSlopes              ALiBi        (num_heads) or (batch, num_heads)              float32
//	Sinks                    Sinks        (num_heads)                                    float32
//	KeyMask                  KeyMask      (batch, seq_kv)                                bool, 1 is visible
//	CuSeqlensQ, CuSeqlensKV  Varlen.On    (batch+1)                                      int32
//
// CuSeqlensQ and CuSeqlensKV are on the device, so no call checks their values. If they break the
// rules of Problem.CheckCuSeqlens, which checks them on the host, results are undefined.
type Tensors struct {
	Q, K, V, O, LSE vk.Tensor

	Bias        vk.Tensor
	ALiBiSlopes vk.Tensor
	Sinks       vk.Tensor
	KeyMask     vk.Tensor
	CuSeqlensQ  vk.Tensor
	CuSeqlensKV vk.Tensor
}

// narrow binds kernels to the parts of buffers that the tensors have.
func (t *Tensors) narrow() {
	vk.Narrow(&t.Q, &t.K, &t.V, &t.O, &t.LSE, &t.Bias, &t.ALiBiSlopes, &t.Sinks, &t.KeyMask, &t.CuSeqlensQ, &t.CuSeqlensKV)
}

// Gradients are the inputs and outputs that only Backward has: gradients of the loss with respect
// to the tensors of the same name. Strides are as in Tensors.
//
//	tensor  shape and format
//	DO      of O, read
//	DLSE    of LSE, read: where the loss depends on LSE; zeros if it is left out
//	DQ      of Q, written
//	DK      of K, written
//	DV      of V, written
//	DBias   of Bias, written: summed over the axes that it shares; may be left out
//	DSinks  of Sinks, written; may be left out
type Gradients struct {
	DO, DLSE vk.Tensor

	DQ, DK, DV, DBias, DSinks vk.Tensor
}

// appendFeatures appends the tensors of features, with what p demands of each.
func (in *Tensors) appendFeatures(list []argument.Argument, p Problem) []argument.Argument {
	var bias, slopes, sinks, mask, cu []int
	if p.Bias.On {
		bias = p.BiasShape()
	}
	if p.ALiBi != ALiBiOff {
		slopes = p.SlopesShape()
	}
	if p.Sinks {
		sinks = p.SinksShape()
	}
	if p.KeyMask {
		mask = p.KeyMaskShape()
	}
	if p.Varlen.On {
		cu = p.CuSeqlensShape()
	}
	return append(list,
		argument.New("bias", in.Bias, bias != nil, p.Bias.DType, bias),
		argument.New("alibi_slopes", in.ALiBiSlopes, slopes != nil, dtype.Float32, slopes),
		argument.New("sinks", in.Sinks, sinks != nil, dtype.Float32, sinks),
		argument.New("key_mask", in.KeyMask, mask != nil, dtype.Bool, mask),
		argument.New("cu_seqlens_q", in.CuSeqlensQ, cu != nil, dtype.Int32, cu),
		argument.New("cu_seqlens_kv", in.CuSeqlensKV, cu != nil, dtype.Int32, cu))
}
