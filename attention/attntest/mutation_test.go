package attntest

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention/problem"
	"github.com/flashvk/flashvk/dtype"
)

// A kernel is the tiled algorithm on strided memory, as a shader is written,
// with one mistake built in. It computes in float64, so that the suite's
// verdict does not hang on rounding; it is tested under TwicePlain, as kernels are.
type kernel struct {
	mistake string
	calls   int // Forward was called so often
}

const kernelBlock = 16

func (k *kernel) is(mistake string) bool { return k.mistake == mistake }

// mistakes are all that kernel can make, each with what the suite's message
// says of it.
var mistakes = []struct{ name, message string }{
	{"causal off by one", "want"},
	{"causal one too few", "want"},
	{"top-left and bottom-right swapped", "want"},
	{"causal ignored", "want"},
	{"O not rescaled", "want"},
	{"l not rescaled", "want"},
	{"rescaled by the last tile's maximum", "want"},
	{"no maximum subtracted", "NaN"},
	{"keys' tail tile dropped", "want"},
	{"keys' tail not masked", "NaN"},
	{"tail key of the first tile dropped", "want"},
	{"garbage in the maximum", "not deterministic"},
	{"rows' tail tile dropped", "NaN"},
	{"stale row", "NaN"},
	{"head dim tail dropped", "NaN"},
	{"group: head modulo key heads", "want"},
	{"group: ratio inverted", "want"},
	{"group ignored", ""}, // reads beyond K: panics in Go, so it is clamped
	{"batch ignored in V", "want"},
	{"log2 for ln in LSE", "LSE["},
	{"LSE without the maximum", "LSE["},
	{"LSE without scale", "LSE["},
	{"LSE finite in rows that see nothing", "LSE["},
	{"rows that see nothing are the mean of V", "want"},
	{"Q scaled in place", "input q was changed"},
	{"V cleared after use", "input v was changed"},
	{"one element past each row", "O was written outside"},
	{"one row past the end", "O was written outside"},
	{"one element before the start", "O was written outside"},
	{"LSE padded to the tile", "LSE was written outside"},
	{"K read with V's strides", "want"},
	{"V read with K's strides", "want"},
	{"O written with Q's strides", "O"},
	{"offset of K ignored", "NaN"},
	{"scale ignored", "want"},
	{"sign of scale lost", "want"},
	{"maximum of unscaled scores", "NaN"},
	{"S in float16", "want"},
	{"P of 8 bits", "want"},
	{"O summed in float16", "want"},
	{"l summed in float16", "want"},
	{"lazy rescale against the last tile", "want"},
	{"differs from call to call", "not deterministic"},
}

// TestMutations says that each mistake fails the suite, and that the kernel
// without one passes.
func TestMutations(t *testing.T) {
	if raceDetector {
		t.Skip("minutes under the race detector, and the kernel is sequential")
	}
	s := NewSuite(Short, Reference, TwicePlain).Where(func(c *Case) bool { return c.Problem.FLOPs() < 2e7 })
	slices.SortStableFunc(s.Cases, func(a, b *Case) int { return cmp.Compare(a.Problem.FLOPs(), b.Problem.FLOPs()) })
	t.Run("none", func(t *testing.T) { s.TestForward(t, &kernel{}) })
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			caught := 0
			for _, c := range s.Cases {
				if _, err := s.Check(c, &kernel{mistake: m.name}); err != nil {
					if caught == 0 {
						t.Logf("%s: %v", c.Name, err)
						require.ErrorContains(t, err, m.message)
					}
					caught++
				}
				if caught == 3 {
					break
				}
			}
			require.NotZero(t, caught, "no case catches it")
		})
	}
}

// at returns the position of row (b, h, i) in the tensor's data.
func at(t *Tensor, b, h, i int) int {
	return t.Offset + b*t.Strides[0] + h*t.Strides[1] + i*t.Strides[2]
}

// Forward walks over tiles of kernelBlock rows and keys.
func (k *kernel) Forward(o, lse, q, kt, v *Tensor, p problem.Problem) error {
	k.calls++
	for b := range p.Batch {
		for h := range p.NumHeads {
			for i0 := 0; i0 < p.SeqQ; i0 += kernelBlock {
				if k.is("rows' tail tile dropped") && i0+kernelBlock > p.SeqQ && i0 > 0 {
					continue
				}
				for i := i0; i < min(i0+kernelBlock, p.SeqQ); i++ {
					if k.is("stale row") && i%64 == 63 {
						continue
					}
					k.row(o, lse, q, kt, v, p, b, h, i)
				}
			}
		}
	}
	k.stray(o, lse, q, v, p)
	return nil
}

// stray makes the mistakes that are writes.
func (k *kernel) stray(o, lse, q, v *Tensor, p problem.Problem) {
	last := at(o, p.Batch-1, p.NumHeads-1, p.SeqQ-1)
	switch {
	case k.is("Q scaled in place"):
		for e := range p.HeadDim {
			q.Data[q.Offset+e] *= 0.5
		}
	case k.is("V cleared after use"):
		v.Data[at(v, p.Batch-1, p.NumKVHeads-1, p.SeqKV-1)] = 0
	case k.is("one element past each row"):
		// Rows after it would repair a neighbour: only padding shows it.
		o.Data[last+p.HeadDim] = math.NaN()
		if o.Strides[2] > p.HeadDim && p.SeqQ > 1 {
			o.Data[at(o, 0, 0, 0)+p.HeadDim] = 0
		}
	case k.is("one row past the end"):
		clear(o.Data[last+p.HeadDim : last+2*p.HeadDim])
	case k.is("one element before the start"):
		if o.Offset > 0 {
			o.Data[o.Offset-1] = 1
		}
	case k.is("LSE padded to the tile") && lse != nil && p.SeqQ%kernelBlock != 0:
		lse.Data[at3(lse, p.Batch-1, p.NumHeads-1)+p.SeqQ] = math.Inf(-1)
	}
}

func at3(t *Tensor, b, h int) int { return t.Offset + b*t.Strides[0] + h*t.Strides[1] }

// keyHead returns the key head of query head h.
func (k *kernel) keyHead(h int, p problem.Problem) int {
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

// visible returns how many keys row i sees.
func (k *kernel) visible(i int, p problem.Problem) int {
	if !p.Causal || k.is("causal ignored") {
		return p.SeqKV
	}
	switch {
	case k.is("top-left and bottom-right swapped"):
		p.CausalAlign = 1 - p.CausalAlign
	case k.is("causal off by one"):
		i++
	case k.is("causal one too few"):
		i--
	}
	_, n := p.Mask().Keys(i)
	if n == 0 && k.is("rows that see nothing are the mean of V") {
		return p.SeqKV
	}
	return n
}

// A rowState is what one row carries from tile to tile.
type rowState struct {
	m, l float64
	last float64   // maximum of the last tile
	acc  []float64 // (HeadDim)
}

// row computes one row.
func (k *kernel) row(o, lse, q, kt, v *Tensor, p problem.Problem, b, h, i int) {
	kh, n := k.keyHead(h, p), k.visible(i, p)
	r := rowState{m: math.Inf(-1), last: math.Inf(-1), acc: make([]float64, p.HeadDim)}
	end := n
	switch {
	case k.is("keys' tail tile dropped") && n > kernelBlock:
		end = n / kernelBlock * kernelBlock
	case k.is("keys' tail not masked") && n == p.SeqKV:
		end = (n + kernelBlock - 1) / kernelBlock * kernelBlock
	}
	tile := min(kernelBlock, p.SeqKV)
	for j0 := 0; j0 < end; j0 += tile {
		s := make([]float64, min(tile, end-j0))
		for j := range s {
			s[j] = k.score(q, kt, v, p, b, h, kh, i, j0+j)
		}
		mNew := k.maximum(&r, s, j0 == 0, p)
		if k.is("garbage in the maximum") && n == p.SeqKV && j0+len(s) == n {
			// A whole tile is scored, and only then masked.
			if x := k.score(q, kt, v, p, b, h, kh, i, n); x > mNew {
				mNew = x
			}
		}
		k.rescale(&r, mNew)
		for j, x := range s {
			if k.is("tail key of the first tile dropped") && j0 == 0 && j == kernelBlock-1 {
				continue
			}
			k.accumulate(&r, math.Exp(x-r.m), k.value(kt, v, p, b, kh, j0+j))
		}
		k.roundSums(&r)
	}
	k.store(o, lse, q, p, b, h, i, r.acc, r.m, r.l)
}

// maximum returns the running maximum after the scores s of a tile.
func (k *kernel) maximum(r *rowState, s []float64, first bool, p problem.Problem) float64 {
	most := slices.Max(s)
	m := max(r.m, most)
	switch {
	case k.is("no maximum subtracted"):
		m = 0
	case k.is("maximum of unscaled scores") && p.EffectiveScale() < 0:
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

// rescale makes m the maximum of what is summed so far.
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

// accumulate adds the weight P of one key and its value.
func (k *kernel) accumulate(r *rowState, P float64, value []float64) {
	r.l += P
	switch {
	case k.is("P of 8 bits"):
		P = math.Round(P*256) / 256
	case k.is("lazy rescale against the last tile") && P > 65504:
		P = math.Inf(1) // P is float16 on matrix units
	}
	for e, y := range value {
		r.acc[e] += P * y
	}
}

// roundSums rounds the sums after a tile.
func (k *kernel) roundSums(r *rowState) {
	if k.is("l summed in float16") {
		r.l = float64(dtype.Float16.Round(float32(r.l)))
	}
	if k.is("O summed in float16") {
		for e, x := range r.acc {
			r.acc[e] = float64(dtype.Float16.Round(float32(x)))
		}
	}
}

// score returns S for one key.
func (k *kernel) score(q, kt, v *Tensor, p problem.Problem, b, h, kh, i, j int) float64 {
	key := *kt
	if k.is("K read with V's strides") {
		key.Strides = v.Strides
	}
	if k.is("offset of K ignored") {
		key.Offset = 0
	}
	scale := p.EffectiveScale()
	switch {
	case k.is("scale ignored"):
		scale = 1 / math.Sqrt(float64(p.HeadDim))
	case k.is("sign of scale lost"):
		scale = math.Abs(scale)
	}
	x := at(q, b, h, i)
	y := min(at(&key, b, kh, j), len(kt.Data)-p.HeadDim)
	sum := 0.0
	keys := kt.Data[y : y+p.HeadDim]
	for e, query := range q.Data[x : x+p.HeadDim] {
		sum += query * keys[e]
	}
	if k.is("S in float16") {
		sum = float64(dtype.Float16.Round(float32(sum)))
	}
	return scale * sum
}

// value returns a row of V.
func (k *kernel) value(kt, v *Tensor, p problem.Problem, b, kh, j int) []float64 {
	val := *v
	if k.is("V read with K's strides") {
		val.Strides = kt.Strides
	}
	if k.is("batch ignored in V") {
		b = 0
	}
	y := min(at(&val, b, kh, j), len(v.Data)-p.HeadDim)
	return v.Data[y : y+p.HeadDim]
}

// store writes one row of O and LSE.
func (k *kernel) store(o, lse, q *Tensor, p problem.Problem, b, h, i int, acc []float64, m, l float64) {
	out := *o
	if k.is("O written with Q's strides") {
		out.Strides = q.Strides
	}
	to := min(at(&out, b, h, i), len(o.Data)-p.HeadDim)
	for e, x := range acc {
		if k.is("head dim tail dropped") && e >= p.HeadDim/16*16 && p.HeadDim > 16 {
			break
		}
		if l != 0 {
			x /= l
		}
		if k.is("differs from call to call") && k.calls > 1 && i == p.SeqQ-1 {
			x = math.Nextafter(x, 9)
		}
		o.Data[to+e] = x
	}
	if lse == nil {
		return
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
	lse.Data[at3(lse, b, h)+i] = sum
}
