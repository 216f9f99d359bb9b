package kernels

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
)

// parseCacheFormat reads --cache-dtype.
func parseCacheFormat(text string) (attention.CacheFormat, error) {
	f, err := attention.ParseCacheFormat(text)
	if err != nil {
		return 0, fmt.Errorf("not same, e4m3 or q8_0")
	}
	return f, nil
}

// readCacheFormat sets the format of the cache from the tensors of a file. The presence of k_scale
// and v_scale is part of the format.
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

// memory returns the shape that K, V or their scales have in the memory of the cache.
func (o *decodeOp) memory(shape []int) []int {
	if !o.heads && len(shape) == 4 {
		shape[1], shape[2] = shape[2], shape[1]
	}
	return shape
}

// integer turns a normal number into an integer of q8_0.
func integer(x float32) float32 {
	return float32(max(-127, min(math.RoundToEven(float64(x)*40), 127)))
}

// scale turns a normal number into the scale of a block of q8_0.
func scale(x float32) float32 { return 0.01 + 0.02*max(x, -x) }

// powerOfTwo turns a normal number into a scale by which Append divides exactly.
func powerOfTwo(x float32) float32 { return float32(math.Exp2(math.Round(float64(x)) - 6)) }

// newRows returns rows that Append stores exactly in q8_0: integers divided by 64. The first
// element of each block is its largest.
func newRows(t dtype.DType, n int, seed uint64) []float32 {
	x := bench.Normal(t, n, seed)
	for i := range x {
		if x[i] = integer(x[i]) / 64; i%attention.QuantBlock == 0 {
			x[i] = 127.0 / 64
		}
	}
	return x
}

// cacheTensors returns K and V in a role, and their scales. Append writes the scales of q8_0.
func (o *decodeOp) cacheTensors(role call.Role) []bench.OpTensor {
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
		draw := scale
		if p.Cache == attention.CacheE4M3 {
			if role = call.Input; o.part != readPart {
				draw = powerOfTwo
			}
		}
		list = append(list, bench.OpTensor{Name: "k_scale", DType: p.ScaleDType(), Shape: o.memory(p.KScaleShape()), Role: role, Draw: draw},
			bench.OpTensor{Name: "v_scale", DType: p.ScaleDType(), Shape: o.memory(p.VScaleShape()), Role: role, Draw: draw})
	}
	return list
}

// A storedCache is K or V as it lies in memory: elements, and the scales of heads or blocks.
type storedCache struct {
	dim              int
	elements, scales []float32
}

// stored returns k or v with its scales from the tensors of a call.
func (o *decodeOp) stored(t map[string][]float32, name string) storedCache {
	dim := o.p.HeadDim
	if name == "v" {
		dim = o.p.ValueHeadDim()
	}
	return storedCache{dim, t[name+"_cache"], t[name+"_scale"]}
}

// put stores a row as Append does.
func (o *decodeOp) put(c *storedCache, row int, x []float32) {
	if o.p.Cache == attention.CacheSame {
		copy(c.elements[row*c.dim:], x)
		return
	}
	scale := ref.HeadScale(&o.p, !o.heads, c.scales)
	if of := scale; of != nil {
		scale = func(int) float32 { return of(row) }
	}
	q := ref.Quantise(o.p.Cache, x, c.dim, scale)
	copy(c.elements[row*c.dim:], q.Stored)
	if o.p.Cache == attention.CacheQ8_0 {
		copy(c.scales[row*c.dim/attention.QuantBlock:], q.Scales)
	}
}

// values returns the numbers that the elements of a cache stand for.
func (o *decodeOp) values(c storedCache) []float32 {
	if o.p.Cache == attention.CacheSame {
		return c.elements
	}
	return ref.Values8(o.p.Cache, c.elements, c.dim, ref.HeadScale(&o.p, !o.heads, c.scales), c.scales)
}
