package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/argument"
)

// Inputs are the tensors of a problem's features. Those of features that are off are
// zero Tensors; the others have any strides with a contiguous last axis.
//
//	tensor                   feature      shape                                          format
//	Bias                     Bias.On      (batch or 1, num_heads or 1, seq_q or 1, seq_kv)  Bias.DType
//	ALiBiSlopes              ALiBi        (num_heads) or (batch, num_heads)              float32
//	Sinks                    Sinks        (num_heads)                                    float32
//	KeyMask                  KeyMask      (batch, seq_kv)                                bool, 1 is visible
//	CuSeqlensQ, CuSeqlensKV  Varlen.On    (batch+1)                                      int32
//
// What is in CuSeqlensQ and CuSeqlensKV is not checked, since it is on the
// device; Problem.CheckCuSeqlens does so on the host. Where it breaks the rules,
// results are undefined.
type Inputs struct {
	Bias        vk.Tensor
	ALiBiSlopes vk.Tensor
	Sinks       vk.Tensor
	KeyMask     vk.Tensor
	CuSeqlensQ  vk.Tensor
	CuSeqlensKV vk.Tensor
}

// any reports whether there is any tensor.
func (in *Inputs) any() bool {
	for _, t := range []*vk.Tensor{&in.Bias, &in.ALiBiSlopes, &in.Sinks, &in.KeyMask, &in.CuSeqlensQ, &in.CuSeqlensKV} {
		if !t.IsZero() {
			return true
		}
	}
	return false
}

// appendTo appends the tensors with what p wants of each.
func (in *Inputs) appendTo(list []argument.Argument, p Problem) []argument.Argument {
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
