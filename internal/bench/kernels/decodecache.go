package kernels

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
)

// parseCacheFormat reads --cache-dtype.
func parseCacheFormat(text string) (attention.CacheFormat, error) {
	f, err := attention.ParseCacheFormat(text)
	if err != nil {
		return 0, fmt.Errorf("not same, e4m3 or q8_0")
	}
	return f, nil
}

// readCacheFormat takes the format of the cache from the tensors of a file, which has k_scale and
// v_scale or not.
func (o *decodeOp) readCacheFormat(h Header) {
	k, _ := h.Tensor("k_cache")
	switch k.DType {
	case bench.FileDType(dtype.E4M3):
		o.p.Cache = attention.CacheE4M3
		_, hasK := h.Tensor("k_scale")
		_, hasV := h.Tensor("v_scale")
		o.scaled = hasK || hasV
	case bench.FileDType(dtype.Int8):
		o.p.Cache = attention.CacheQ8_0
	}
}

// cacheFloats is Header.Floats of k_cache or v_cache, which may have 8 bits.
func (o *decodeOp) cacheFloats(h Header, name string, axes ...string) ([]int, dtype.DType, error) {
	t, ok := h.Tensor(name)
	if want := o.p.CacheDType(); ok && o.p.Cache != attention.CacheSame && t.DType == bench.FileDType(want) {
		if len(t.Shape) != len(axes) {
			return nil, 0, fmt.Errorf("tensor %q: shape %v has %d axes, want %d", name, t.Shape, len(t.Shape), len(axes))
		}
		return t.Shape, want, nil
	}
	return h.Floats(name, axes...)
}

// memory returns the shape of K, V or their scales as the cache lies in memory.
func (o *decodeOp) memory(shape []int) []int {
	if !o.heads && len(shape) == 4 {
		shape[1], shape[2] = shape[2], shape[1]
	}
	return shape
}

// integer makes an integer of q8_0 of a normal number, and a scale one of a block.
func integer(x float32) float32 {
	return float32(max(-127, min(math.RoundToEven(float64(x)*40), 127)))
}

func scale(x float32) float32 { return 0.01 + 0.02*max(x, -x) }

// cacheTensors returns K and V in their role, and their scales.
func (o *decodeOp) cacheTensors(role bench.Role) []bench.OpTensor {
	p := &o.p
	k, v := o.cacheShapes()
	list := []bench.OpTensor{
		{Name: "k_cache", DType: p.CacheDType(), Shape: k, Role: role},
		{Name: "v_cache", DType: p.CacheDType(), Shape: v, Role: role},
	}
	if p.Cache == attention.CacheQ8_0 {
		list[0].Draw, list[1].Draw = integer, integer
	}
	if p.Cache == attention.CacheQ8_0 || o.scaled {
		list = append(list, bench.OpTensor{Name: "k_scale", DType: p.ScaleDType(), Shape: o.memory(p.KScaleShape()), Draw: scale},
			bench.OpTensor{Name: "v_scale", DType: p.ScaleDType(), Shape: o.memory(p.VScaleShape()), Draw: scale})
	}
	return list
}

// cacheValues returns what the elements of k or v stand for.
func (o *decodeOp) cacheValues(t map[string][]float32, name string) []float32 {
	x, scales := t[name+"_cache"], t[name+"_scale"]
	p := &o.p
	if p.Cache == attention.CacheSame || scales == nil {
		return x
	}
	dim, keys := p.HeadDim, p.KShape()[2]
	if name == "v" {
		dim = p.ValueHeadDim()
	}
	y := make([]float32, len(x))
	for i := range x {
		at := i / attention.QuantBlock
		if p.Cache == attention.CacheE4M3 {
			if at = i / dim / keys % p.NumKVHeads; !o.heads {
				at = i / dim % p.NumKVHeads
			}
		}
		if y[i] = x[i] * scales[at]; p.Cache == attention.CacheQ8_0 {
			y[i] = dtype.Float16.Round(y[i])
		}
	}
	return y
}
