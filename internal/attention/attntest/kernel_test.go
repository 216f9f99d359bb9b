package attntest

import (
	"math"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
)

// A kernel is the tiled algorithm on strided memory, written like a shader, with one mistake built
// in. It computes in float64, so that the suite's verdict does not depend on rounding. Its
// tolerance is TwicePlain, as for kernels.
type kernel struct {
	mistake string
	rounds  bool // weights and results to the problem's format, scores and sums to float32
	calls   int  // Forward was called so often

	in Inputs // of the call
	p  attention.Problem
	m  attention.Mask // of the sequence
}

const kernelBlock = 16

func (k *kernel) is(mistake string) bool { return k.mistake == mistake }

// stored returns x as a kernel that rounds stores it.
func (k *kernel) stored(x float64) float64 {
	if k.rounds {
		return float64(k.p.DType.Round(float32(x)))
	}
	return x
}

// at returns the position of row (b, h, i) in the data of O, Q, K or V: row i of
// sequence b, packed or not.
func (k *kernel) at(t *guard.View, b, h, i int) int {
	if len(t.Shape) == 4 {
		return t.Offset + b*t.Strides[0] + h*t.Strides[1] + i*t.Strides[2]
	}
	return t.Offset + (k.first(t, b)+i)*t.Strides[0] + h*t.Strides[1]
}

// first returns where sequence b begins in a packed tensor.
func (k *kernel) first(t *guard.View, b int) int {
	cu := k.in.CuSeqlensQ
	if slices.Contains([]string{"k", "v", "dk", "dv"}, t.Name) || k.is("queries where the keys are") {
		cu = k.in.CuSeqlensKV
	}
	return int(cu.Data[cu.Offset+b])
}

// atLSE returns the position of row i in the data of LSE.
func (k *kernel) atLSE(t *guard.View, b, h, i int) int {
	switch {
	case len(t.Shape) == 3:
		return t.Offset + b*t.Strides[0] + h*t.Strides[1] + i
	case k.is("LSE not packed"):
		return min(t.Offset+(b*k.p.NumHeads+h)*k.p.SeqQ+i, len(t.Data)-1)
	}
	return t.Offset + h*t.Strides[0] + k.first(k.in.Q, b) + i
}

// mask returns the mask of a sequence, with its lengths.
func (k *kernel) mask(b int) attention.Mask {
	p := k.p
	switch {
	case k.is("top-left and bottom-right swapped"):
		p.CausalAlign = 1 - p.CausalAlign
	case k.is("causal ignored"):
		p.Causal = false
	case k.is("window: open to the right"):
		p.Window.Right = attention.Unlimited
	case k.is("window: one key fewer to the right") && p.Window.Right > 0:
		p.Window.Right--
	case k.is("window: one key more to the left") && p.Window.Left >= 0:
		p.Window.Left++
	}
	m := p.Mask()
	if p.Varlen.On {
		length := func(cu *guard.View) int { return int(cu.Data[cu.Offset+b+1] - cu.Data[cu.Offset+b]) }
		m = p.MaskOf(length(k.in.CuSeqlensQ), length(k.in.CuSeqlensKV))
		switch {
		case k.is("shift of the longest sequence") && p.CausalAlign == attention.BottomRight:
			m.Shift = p.SeqKV - p.SeqQ
		case k.is("keys of the longest sequence"):
			m.SeqKV = min(p.SeqKV, p.Varlen.TotalKV-k.first(k.in.K, b))
		case k.is("rows of the longest sequence"):
			m.SeqQ = min(p.SeqQ, p.Varlen.TotalQ-k.first(k.in.Q, b))
		}
	}
	if k.is("window without the shift") && p.Window.On {
		m.Shift = 0
	}
	return m
}

// Forward walks over tiles of kernelBlock rows and keys.
func (k *kernel) Forward(o, lse *guard.View, in Inputs, p attention.Problem) error {
	k.calls++
	k.in, k.p = in, p
	for b := range p.Batch {
		k.m = k.mask(b)
		for h := range p.NumHeads {
			for i0 := 0; i0 < k.m.SeqQ; i0 += kernelBlock {
				if k.is("rows' tail tile dropped") && i0+kernelBlock > k.m.SeqQ && i0 > 0 {
					continue
				}
				for i := i0; i < min(i0+kernelBlock, k.m.SeqQ); i++ {
					if k.is("stale row") && i%64 == 63 {
						continue
					}
					k.row(o, lse, b, h, i)
				}
			}
		}
	}
	k.stray(o, lse)
	return nil
}

// stray makes the mistakes that are writes.
func (k *kernel) stray(o, lse *guard.View) {
	p, q, v := k.p, k.in.Q, k.in.V
	if p.Varlen.On {
		return
	}
	dv := p.ValueHeadDim()
	last := k.at(o, p.Batch-1, p.NumHeads-1, p.SeqQ-1)
	switch {
	case k.is("Q scaled in place"):
		for e := range p.HeadDim {
			q.Data[q.Offset+e] *= 0.5
		}
	case k.is("V cleared after use"):
		v.Data[k.at(v, p.Batch-1, p.NumKVHeads-1, p.SeqKV-1)] = 0
	case k.is("one element past each row"):
		// Later rows would overwrite a wrong neighbour, so only padding shows the mistake.
		o.Data[last+dv] = math.NaN()
		if o.Strides[2] > dv && p.SeqQ > 1 {
			o.Data[k.at(o, 0, 0, 0)+dv] = 0
		}
	case k.is("one row past the end"):
		clear(o.Data[last+dv : last+2*dv])
	case k.is("one element before the start"):
		if o.Offset > 0 {
			o.Data[o.Offset-1] = 1
		}
	case k.is("LSE padded to the tile") && lse != nil && p.SeqQ%kernelBlock != 0:
		lse.Data[k.atLSE(lse, p.Batch-1, p.NumHeads-1, p.SeqQ)] = math.Inf(-1)
	}
}

// keyHead returns the key head of query head h.
func (k *kernel) keyHead(h int) int {
	p := k.p
	switch ratio := p.NumHeads / p.NumKVHeads; {
	case k.is("group: head modulo key heads"):
		return h % p.NumKVHeads
	case k.is("group: ratio inverted"):
		return h * ratio % p.NumKVHeads
	case k.is("group ignored"):
		return min(h, p.NumKVHeads-1)
	default:
		return h / ratio
	}
}

// keys returns the keys lo to hi-1 that row i sees by its position.
func (k *kernel) keys(i int) (lo, hi int) {
	if k.p.Causal {
		switch {
		case k.is("causal off by one"):
			i++
		case k.is("causal one too few"):
			i--
		}
	}
	lo, hi = k.m.Keys(i)
	if lo == hi && k.is("rows that see nothing are the mean of V") {
		return 0, k.m.SeqKV
	}
	if lo == hi && lo > 0 && k.is("window: rows after the keys see the last") {
		lo--
	}
	return lo, hi
}

// sees reports whether the row sees a key that its position shows.
func (k *kernel) sees(b, j int) bool {
	mask := k.in.KeyMask
	if mask == nil || k.is("key mask ignored") {
		return true
	}
	if k.is("key mask of the first batch") {
		b = 0
	}
	return (mask.Data[mask.Offset+b*mask.Strides[0]+j] != 0) != k.is("key mask inverted")
}

// A rowState is what one row carries from tile to tile.
type rowState struct {
	b, h, i int
	m, l    float64
	last    float64   // maximum of the last tile
	acc     []float64 // (value_dim)
}

// row computes one row.
func (k *kernel) row(o, lse *guard.View, b, h, i int) {
	p := k.p
	kh := k.keyHead(h)
	lo, n := k.keys(i)
	all := k.m.SeqKV
	r := rowState{b: b, h: h, i: i, m: math.Inf(-1), last: math.Inf(-1), acc: make([]float64, p.ValueHeadDim())}
	if sink := k.sink(h, kh); !math.IsInf(sink, -1) && (lo < n || !k.is("sink lost where no key is seen")) {
		r.m, r.l = sink, 1
	}
	end := n
	switch {
	case k.is("keys' tail tile dropped") && n > kernelBlock:
		end = n / kernelBlock * kernelBlock
	case k.is("keys' tail not masked") && n == all:
		end = (n + kernelBlock - 1) / kernelBlock * kernelBlock
	}
	tile := max(min(kernelBlock, all), 1)
	first := lo / tile * tile
	if k.is("window: first tile skipped") && lo > first {
		first += tile
	}
	for j0 := first; j0 < end; j0 += tile {
		s := make([]float64, min(tile, end-j0))
		for j := range s {
			switch {
			case j0+j >= lo && k.sees(b, j0+j) && !math.IsInf(k.bias(b, h, kh, i, j0+j), -1):
				s[j] = k.score(b, h, kh, i, j0+j)
			case k.is("hidden K in the score"):
				s[j] = k.score(b, h, kh, i, j0+j) - 1e30
			default:
				s[j] = math.Inf(-1)
			}
		}
		mNew := k.maximum(&r, s, j0 == 0)
		if k.is("garbage in the maximum") && n == all && j0+len(s) == n {
			// A whole tile is scored, and only then masked.
			if x := k.score(b, h, kh, i, n); x > mNew {
				mNew = x
			}
		}
		if math.IsInf(mNew, -1) {
			continue // nothing seen yet
		}
		k.rescale(&r, mNew)
		for j, x := range s {
			if k.is("tail key of the first tile dropped") && j0 == 0 && j == kernelBlock-1 {
				continue
			}
			k.accumulate(&r, math.Exp(x-r.m), j0+j, k.value(b, kh, j0+j))
		}
		k.roundSums(&r)
	}
	k.store(o, lse, b, h, kh, &r)
}

// maximum returns the running maximum after the scores s of a tile.
func (k *kernel) maximum(r *rowState, s []float64, first bool) float64 {
	most := slices.Max(s)
	m := max(r.m, most)
	switch {
	case k.is("no maximum subtracted"):
		m = 0
	case k.is("maximum of unscaled scores") && k.p.EffectiveScale() < 0:
		m = slices.Min(s)
		if !first {
			m = min(r.m, m)
		}
	case k.is("rescaled by the last tile's maximum"):
		m = most
	case k.is("lazy rescale against the last tile"):
		if most-r.last <= 8*math.Ln2 {
			m = r.m
		}
		r.last = most
	}
	return m
}

// rescale makes m the maximum by which the sums so far are scaled.
func (k *kernel) rescale(r *rowState, m float64) {
	alpha := math.Exp(r.m - m)
	if k.is("rescaled by the last tile's maximum") {
		alpha = min(alpha, 1)
	}
	if !k.is("l not rescaled") {
		r.l *= alpha
	}
	if !k.is("O not rescaled") {
		for e := range r.acc {
			r.acc[e] *= alpha
		}
	}
	r.m = m
}

// accumulate adds the weight P of key j and its value.
func (k *kernel) accumulate(r *rowState, P float64, j int, value []float64) {
	if P == 0 && !k.is("hidden V times a weight of 0") {
		return
	}
	kept := k.keep(r, j)
	if kept != 0 || !k.is("dropout in the sum") {
		r.l += P
	}
	switch {
	case k.is("P of 8 bits"):
		P = math.Round(P*256) / 256
	case k.is("lazy rescale against the last tile") && P > 65504:
		P = math.Inf(1) // P is float16 on matrix units
	}
	P = k.stored(P) * kept
	for e, y := range value {
		r.acc[e] += P * y
	}
}

// roundSums rounds the sums after a tile.
func (k *kernel) roundSums(r *rowState) {
	if k.rounds {
		r.l = float64(float32(r.l))
		for e, x := range r.acc {
			r.acc[e] = float64(float32(x))
		}
	}
	if k.is("l summed in float16") {
		r.l = float64(dtype.Float16.Round(float32(r.l)))
	}
	if k.is("O summed in float16") {
		for e, x := range r.acc {
			r.acc[e] = float64(dtype.Float16.Round(float32(x)))
		}
	}
}

// value returns a row of V.
func (k *kernel) value(b, kh, j int) []float64 {
	dv := k.p.ValueHeadDim()
	val := *k.in.V
	if k.is("V read with K's strides") {
		val.Strides = k.in.K.Strides
	}
	if k.is("batch ignored in V") {
		b = 0
	}
	y := min(k.at(&val, b, kh, j), len(val.Data)-dv)
	return val.Data[y : y+dv]
}

// store writes one row of O and LSE.
func (k *kernel) store(o, lse *guard.View, b, h, kh int, r *rowState) {
	p, i, m, l := k.p, r.i, r.m, r.l
	out := *o
	if k.is("O written with Q's strides") {
		out.Strides = k.in.Q.Strides
	}
	acc := r.acc
	if k.is("O as wide as Q") {
		acc = append(acc, make([]float64, p.HeadDim)...)[:p.HeadDim]
	}
	to := min(k.at(&out, b, h, i), len(o.Data)-len(acc))
	for e, x := range acc {
		if k.is("head dim tail dropped") && e >= len(acc)/16*16 && len(acc) > 16 {
			break
		}
		if l != 0 {
			x /= l
		}
		if k.is("differs from call to call") && k.calls > 1 && i == p.SeqQ-1 {
			x = math.Nextafter(x, 9)
		}
		o.Data[to+e] = k.stored(x)
	}
	if lse == nil {
		return
	}
	if sink := k.sink(h, kh); k.is("sink not in LSE") && l > 0 {
		l = max(l-math.Exp(sink-m), 0)
	}
	sum := m + math.Log(l)
	switch {
	case l == 0:
		sum = math.Inf(-1)
		if k.is("LSE finite in rows that see nothing") {
			sum = -math.MaxFloat32 / 2
		}
	case k.is("log2 for ln in LSE"):
		sum = m + math.Log2(l)
	case k.is("LSE without the maximum"):
		sum = math.Log(l)
	case k.is("LSE without scale"):
		sum = m/p.EffectiveScale() + math.Log(l)
	}
	lse.Data[k.atLSE(lse, b, h, i)] = sum
}
