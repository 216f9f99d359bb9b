package attntest

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/philox"
)

// score returns S for one key.
func (k *kernel) score(b, h, kh, i, j int) float64 {
	sum, scale := k.product(b, h, kh, i, j), k.scale()
	if k.is("softcap before scale") {
		return scale*k.capped(sum) + k.bias(b, h, kh, i, j) - k.alibi(b, h, kh, i, j)
	}
	s := scale * sum
	switch {
	case k.is("softcap after bias"):
		return k.capped(s+k.bias(b, h, kh, i, j)) - k.alibi(b, h, kh, i, j)
	case k.is("bias scaled"):
		return k.capped(s) + scale*k.bias(b, h, kh, i, j) - k.alibi(b, h, kh, i, j)
	}
	return k.capped(s) + k.bias(b, h, kh, i, j) - k.alibi(b, h, kh, i, j)
}

func (k *kernel) scale() float64 {
	switch {
	case k.is("scale ignored"):
		return 1 / math.Sqrt(float64(k.p.HeadDim))
	case k.is("sign of scale lost"):
		return math.Abs(k.p.EffectiveScale())
	}
	return k.p.EffectiveScale()
}

// product returns the product of a row of Q and one of K.
func (k *kernel) product(b, h, kh, i, j int) float64 {
	p, q, kt := k.p, k.in.Q, k.in.K
	key := *kt
	if k.is("K read with V's strides") {
		key.Strides = k.in.V.Strides
	}
	if k.is("offset of K ignored") {
		key.Offset = 0
	}
	x := min(k.at(q, b, h, i), len(q.Data)-p.HeadDim)
	y := min(k.at(&key, b, kh, j), len(kt.Data)-p.HeadDim)
	sum := 0.0
	keys := kt.Data[y : y+p.HeadDim]
	for e, query := range q.Data[x : x+p.HeadDim] {
		sum += query * keys[e]
	}
	if k.is("S in float16") {
		sum = float64(dtype.Float16.Round(float32(sum)))
	}
	if k.rounds {
		sum = float64(float32(sum))
	}
	return sum
}

func (k *kernel) capped(x float64) float64 {
	c := k.p.Softcap
	switch {
	case c == 0 || k.is("softcap ignored"):
		return x
	case k.is("softcap without its factor"):
		return math.Tanh(x / c)
	}
	return c * math.Tanh(x/c)
}

func (k *kernel) bias(b, h, kh, i, j int) float64 {
	t := k.in.Bias
	if t == nil || k.is("bias ignored") {
		return 0
	}
	switch {
	case k.is("bias of the first row"):
		i = 0
	case k.is("bias of the first head"):
		h = 0
	case k.is("bias of the first batch"):
		b = 0
	case k.is("bias of the key head"):
		h = kh
	}
	strides := [3]int{t.Strides[0], t.Strides[1], t.Strides[2]}
	for axis, n := range t.Shape[:3] {
		if n == 1 && !k.is("bias with the strides of S") {
			strides[axis] = 0
		}
	}
	at := t.Offset + b*strides[0] + h*strides[1] + i*strides[2] + j
	return t.Data[min(at, len(t.Data)-1)]
}

func (k *kernel) alibi(b, h, kh, i, j int) float64 {
	t := k.in.ALiBiSlopes
	if t == nil || k.is("ALiBi ignored") {
		return 0
	}
	shift := k.m.Shift
	switch {
	case k.is("ALiBi of the key head"):
		h = kh
	case k.is("ALiBi of the first batch"):
		b = 0
	case k.is("ALiBi without the shift"):
		shift = 0
	}
	slope := t.Data[t.Offset+h]
	if len(t.Shape) == 2 {
		slope = t.Data[t.Offset+b*t.Strides[0]+h]
	}
	distance := float64(i + shift - j)
	if k.is("ALiBi without absolute value") {
		return slope * distance
	}
	return slope * math.Abs(distance)
}

// sink returns the sink of a row, -Inf for none.
func (k *kernel) sink(h, kh int) float64 {
	t := k.in.Sinks
	switch {
	case t == nil || k.is("sink ignored"):
		return math.Inf(-1)
	case k.is("sink of the key head"):
		h = kh
	case k.is("sink scaled"):
		return t.Data[t.Offset+h] * k.p.EffectiveScale()
	}
	return t.Data[t.Offset+h]
}

// keep returns the factor of a weight by dropout.
func (k *kernel) keep(r *rowState, j int) float64 {
	d := k.p.Dropout
	if d.P == 0 || k.is("dropout ignored") {
		return 1
	}
	i, n := r.i, d.Offset+uint64(r.b*k.p.NumHeads+r.h)
	seed := [2]uint32{uint32(d.Seed), uint32(d.Seed >> 32)}
	switch {
	case k.is("dropout: row and key exchanged"):
		i, j = j, i
	case k.is("dropout: batch ignored"):
		n = d.Offset + uint64(r.h)
	case k.is("dropout: one word for four keys"):
		j = j / 4 * 4
	case k.is("dropout: offset of 32 bits"):
		n = uint64(uint32(n))
	case k.is("dropout: seed of 32 bits"):
		seed[1] = 0
	case k.is("dropout: key of the tile"):
		j %= kernelBlock
	}
	words := philox.Words([4]uint32{uint32(j / 4), uint32(i), uint32(n), uint32(n >> 32)}, seed)
	switch {
	case words[j%4] < d.Threshold():
		return 0
	case k.is("dropout not scaled"):
		return 1
	}
	return d.KeepScale()
}
