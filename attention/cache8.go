package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// A CacheFormat is the format of a cache of keys and values. 8-bit caches take queries of float16
// or bfloat16. Their elements are multiplied in float16, on the scalar path in float32, and added
// in float32.
//
//	CacheSame   the problem's DType
//	CacheE4M3   dtype.QuantE4M3, with a scale per key head, of K and of V (1 without): 1 byte
//	CacheQ8_0   dtype.QuantQ8: 34/32 bytes
//
// The numbers of q8_0 are ggml's. ggml stores the scale of a block before its 32 integers; here
// integers and scales are separate tensors, so that both are aligned. head_dim and value_dim are
// multiples of 32.
//
// Append rounds as dtype.Quant says, in e4m3 with the scales that are given. Decode reads the NaN of
// e4m3 as 480, and the float16 nearest to the product of an integer of q8_0 and its scale.
type CacheFormat uint8

// The formats of caches.
const (
	CacheSame CacheFormat = iota
	CacheE4M3
	CacheQ8_0
)

var cacheFormats = enum.Names[CacheFormat]{CacheSame: "same", CacheE4M3: "e4m3", CacheQ8_0: "q8_0"}

// String returns the name: same, e4m3, q8_0.
func (f CacheFormat) String() string { return cacheFormats.Of(f) }

// ParseCacheFormat reads what String writes.
func ParseCacheFormat(name string) (CacheFormat, error) {
	return cacheFormats.Parse("attention: cache format", name)
}

// Quant returns the format of elements and scales, dtype.NoQuant for CacheSame.
func (f CacheFormat) Quant() dtype.Quant {
	switch f {
	case CacheE4M3:
		return dtype.QuantE4M3
	case CacheQ8_0:
		return dtype.QuantQ8
	}
	return dtype.NoQuant
}

// QuantBlock is the number of elements of a row that share a scale in CacheQ8_0.
const QuantBlock = dtype.Q8Block

// cacheAlignment is the alignment of rows of an 8-bit cache, in bytes.
const cacheAlignment = 8

// CacheDType returns the format of K and V.
func (p DecodeProblem) CacheDType() dtype.DType {
	if p.Cache == CacheSame {
		return p.DType
	}
	return p.Cache.Quant().Element()
}

// ScaleDType returns the format of KScale and VScale: float16 with CacheQ8_0, else float32.
func (p DecodeProblem) ScaleDType() dtype.DType { return p.Cache.Quant().ScaleDType() }

// KScaleShape returns (num_kv_heads) with CacheE4M3, KShape with head_dim/32 with CacheQ8_0, and
// nil with CacheSame.
func (p DecodeProblem) KScaleShape() []int { return p.scaleShape(p.KShape()) }

// VScaleShape is KScaleShape of V.
func (p DecodeProblem) VScaleShape() []int { return p.scaleShape(p.VShape()) }

func (p *DecodeProblem) scaleShape(shape []int) []int {
	switch p.Cache {
	case CacheE4M3:
		return []int{p.NumKVHeads}
	case CacheQ8_0:
		shape[3] /= QuantBlock
		return shape
	}
	return nil
}

// cacheBytes returns the bytes of some elements of the cache, with their scales.
func (p *DecodeProblem) cacheBytes(elements float64) float64 {
	if p.Cache == CacheQ8_0 {
		return elements * (1 + 2.0/QuantBlock)
	}
	return elements * float64(p.CacheDType().Size())
}

func (p *DecodeProblem) validateFormat() error {
	switch {
	case p.Cache > CacheQ8_0:
		return fmt.Errorf("attention: %v is no format of a cache", p.Cache)
	case p.Cache != CacheSame && p.DType == dtype.Float32:
		return fmt.Errorf("attention: a cache of %v has queries of float16 or bfloat16, not %v", p.Cache, p.DType)
	case p.Cache == CacheQ8_0 && p.HeadDim%QuantBlock != 0:
		return fmt.Errorf("attention: head_dim=%d is not a multiple of %d, a block of %v", p.HeadDim, QuantBlock, p.Cache)
	case p.Cache == CacheQ8_0 && p.ValueHeadDim()%QuantBlock != 0:
		return fmt.Errorf("attention: value_dim=%d is not a multiple of %d, a block of %v", p.ValueHeadDim(), QuantBlock, p.Cache)
	}
	return nil
}

// scaleArguments returns KScale and VScale. Scales of CacheE4M3 may have one element, or both be
// left out.
func (p *DecodeProblem) scaleArguments(k, v *vk.Tensor) []argument.Argument {
	kShape, vShape := p.KScaleShape(), p.VScaleShape()
	on := p.Cache == CacheQ8_0 || p.Cache == CacheE4M3 && !(k.IsZero() && v.IsZero())
	if p.Cache == CacheE4M3 {
		for _, x := range []struct {
			t     *vk.Tensor
			shape *[]int
		}{{k, &kShape}, {v, &vShape}} {
			if len(x.t.Shape) == 1 && x.t.Shape[0] == 1 {
				*x.shape = x.t.Shape
			}
		}
	}
	return []argument.Argument{argument.New("k_scale", *k, on, p.ScaleDType(), kShape), argument.New("v_scale", *v, on, p.ScaleDType(), vShape)}
}

// checkCache returns an error unless the rows of an 8-bit cache, which fits the problem, and their
// scales lie as kernels read them.
func (p *DecodeProblem) checkCache(name string, k, v, kScale, vScale *vk.Tensor) error {
	if p.Cache == CacheSame {
		return nil
	}
	for _, x := range []struct {
		name     string
		t, scale *vk.Tensor
	}{{"k", k, kScale}, {"v", v, vScale}} {
		if !x.t.Aligned(cacheAlignment) {
			return fmt.Errorf("%s: %s has strides %v and offset %d: rows of a cache of %v begin at multiples of %d", name, x.name, x.t.Strides, x.t.Offset, p.Cache, cacheAlignment)
		}
		for axis := range 3 {
			if p.Cache == CacheQ8_0 && stride(x.t, axis) != QuantBlock*stride(x.scale, axis) {
				return fmt.Errorf("%s: %s_scale has strides %v, want the strides %v of %s, divided by %d", name, x.name, x.scale.Strides, x.t.Strides, x.name, QuantBlock)
			}
		}
	}
	return nil
}

// cacheSpec is the specialization of all kernels for 8-bit caches.
type cacheSpec struct {
	Format uint32 `glsl:"CACHE_FORMAT"`
	Scaled bool   `glsl:"SCALED"`
}

func newCacheSpec(p *DecodeProblem, kScale *vk.Tensor) cacheSpec {
	return cacheSpec{Format: uint32(p.Cache - CacheE4M3), Scaled: !kScale.IsZero()}
}

// cacheParams are the push constants of all kernels for 8-bit caches.
type cacheParams struct {
	KScaleOffset  uint32 `glsl:"k_scale_offset"`
	KScaleStrideH uint32 `glsl:"k_scale_stride_h"`
	VScaleOffset  uint32 `glsl:"v_scale_offset"`
	VScaleStrideH uint32 `glsl:"v_scale_stride_h"`
}

func newCacheParams(p *DecodeProblem, k, v *vk.Tensor) cacheParams {
	x := cacheParams{KScaleOffset: uint32(k.Offset), VScaleOffset: uint32(v.Offset)}
	if p.Cache == CacheE4M3 {
		x.KScaleStrideH, x.VScaleStrideH = stride(k, 0), stride(v, 0)
	}
	return x
}

// cacheBuffers is the number of bindings that only kernels for 8-bit caches have.
const cacheBuffers = 2

// alignable appends the tensors of a cache to the list, unless the cache has 8 bits: rows of 8-bit
// caches are always aligned.
func (p *DecodeProblem) alignable(list []vk.Tensor, cache ...vk.Tensor) []vk.Tensor {
	if p.Cache != CacheSame {
		return list
	}
	return append(list, cache...)
}
