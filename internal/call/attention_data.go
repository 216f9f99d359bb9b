package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
)

// The kinds of Q, K and V of Attention, beside normal numbers and outliers. Outliers of dO are as
// large.
const (
	// BigLogitsKind has S = ±1e4 plus a standard normal: rows pick the keys of their own sign, among
	// which the normal part decides. Without the maximum subtracted, exp overflows; with S in
	// float16, the normal part is lost.
	BigLogitsKind = "big-logits"

	// HugeKind has Q, K and V near the top of float16's range (2^50 for the others) with a Scale that
	// makes S a few units: Q*Scale underflows in float16, Q*Kᵀ before scaling overflows it. A normal
	// dO is 2^-8 times as large, so that dO*V stays in the range of float16.
	HugeKind = "huge"

	// EqualKeysKind repeats one key: P is uniform, O the mean of V, LSE S + log(keys).
	EqualKeysKind = "equal-keys"

	// OneHotKind gives row i weights, up to e^-50, only for keys j with j = 7*i mod head_dim. O is a
	// permutation of V, so that an exchange of rows, keys or heads shows.
	OneHotKind = "one-hot"

	// RisingKind raises S with the key's number by more than 2^8 per 32 keys: the running maximum
	// grows in every tile.
	RisingKind = "rising"

	// CreepingKind raises S by 4.5 log2 units per 64 keys. A lazy rescale waits for more than that in
	// one tile, but for less in two. P overflows if a maximum is compared with the last tile's
	// instead of the one in use.
	CreepingKind = "creeping"

	// FallingKind lowers S with the key's number: the first tile's maximum stays.
	FallingKind = "falling"

	// LateKind has scores near 0 but for one key, in the middle: its scores give weights of 2^120 to 2^127
	// beside the others', in turn for the rows. A walk relative to the first keys has sums as large, whose
	// inverses are no normal numbers; V is small, so that such a walk's O does not overflow.
	LateKind = "late"

	// UnevenKind multiplies each row of Q, K and V by a power of two of its own, down to 2^-12 in
	// float16 and 2^-30 in other formats. If float32 is split into float16, rows share a scale, and
	// small rows stand beside large ones.
	UnevenKind = "uneven"

	// WideKind multiplies one channel of Q, of K, or one of each by 50; calls with a Quant draw it.
	WideKind = "wide-channel"

	// AllZeroKind is all zeros: S = 0, LSE = log(keys), O = 0.
	AllZeroKind = "zero"
)

// AttentionKinds lists the kinds of inputs that any call of Attention draws.
func AttentionKinds() []string {
	return []string{"", BigLogitsKind, HugeKind, EqualKeysKind, OneHotKind, RisingKind, CreepingKind, FallingKind, LateKind, UnevenKind, AllZeroKind}
}

// An UpstreamKind says what values dO holds.
type UpstreamKind uint8

// The kinds of dO. With a dO of 0 all gradients are exactly 0. With a single 1, in the middle of
// the tensor, the gradients of the other rows, heads and batches are.
const (
	NormalDO UpstreamKind = iota
	ZeroDO
	OneHotDO
)

// String returns the name as it stands in names of cases.
func (k UpstreamKind) String() string {
	return enum.Names[UpstreamKind]{"normal", "zero", "one-hot"}.Of(k)
}

// A MaskKind says which keys of a batch a key mask hides.
type MaskKind uint8

// The kinds of key masks. All but the first hide whole tiles of keys.
const (
	RandomMask     MaskKind = iota // shows three keys in four, at random, and none in the third batch
	RunsMask                       // hides and shows runs of keys, of lengths from 1 to 256 and more
	PaddedMask                     // shows the first keys: sequences that are filled up at the end
	LeftPaddedMask                 // shows the last keys
	SparseMask                     // shows a few single keys, and in one batch of four, at random, none

	NumMasks // how many there are
)

// String returns the name as it stands in messages.
func (m MaskKind) String() string {
	return enum.Names[MaskKind]{"random", "runs", "padded", "left-padded", "sparse"}.Of(m)
}

// hugeMagnitude returns the size of HugeKind's values, such that V's convex combinations do not
// overflow even if P's weights are rounded up.
func hugeMagnitude(t dtype.DType) float64 {
	if t == dtype.Float16 {
		return 65504 * (1 - 0x1p-5)
	}
	return 0x1p50
}

// HugeScale returns the Scale that HugeKind has.
func HugeScale(p *attention.Problem) float64 {
	m := hugeMagnitude(p.DType)
	return 4 / (m * m * math.Sqrt(float64(p.HeadDim)))
}

// An attentionValues draws what inputs of attention hold.
type attentionValues struct {
	*Attention
	*rand.Rand
}

// Adjust draws the inputs.
func (a *Attention) Adjust(x Values) {
	// Cases that were wrong before are drawn from these seeds.
	g := attentionValues{a, rand.New(rand.NewPCG(1, a.Seed))}
	x["q"], x["k"], x["v"] = g.qkv()
	sizes := map[string]float64{"q": a.Sizes.Q, "k": a.Sizes.K, "v": a.Sizes.V}
	for name, size := range sizes {
		scaleBy(x[name], size)
	}
	for _, name := range []string{"q", "k", "v"} {
		g.outliers(x[name], sizes[name])
		roundTo(x[name], a.DType)
	}
	g.features(x)
	g = attentionValues{a, rand.New(rand.NewPCG(2, a.Seed))}
	x["do"] = g.normal(a.OShape())
	switch {
	case a.DO == ZeroDO:
		clear(x["do"])
	case a.DO == OneHotDO:
		clear(x["do"])
		x["do"][len(x["do"])/2+a.ValueHeadDim()/3] = 1
	case a.Kind == HugeKind:
		scaleBy(x["do"], 0x1p-8)
	}
	roundTo(x["do"], a.DType)
	scaleBy(x["do"], a.Sizes.DO)
	g.outliers(x["do"], a.Sizes.DO)
	roundTo(x["do"], a.DType)
	if a.DLSE {
		x["dlse"] = g.normal(a.LSEShape())
		roundTo(x["dlse"], dtype.Float32)
		scaleBy(x["dlse"], a.Sizes.DLSE)
		roundTo(x["dlse"], dtype.Float32)
	}
}

// scaleBy multiplies by a size; 0 stands for 1.
func scaleBy(x []float64, size float64) {
	for i := range x {
		x[i] *= OrOne(size)
	}
}

// roundTo makes x numbers that the format stores.
func roundTo(x []float64, t dtype.DType) {
	for i := range x {
		x[i] = float64(t.Round(float32(x[i])))
	}
}

// outliers makes some elements of a size OutlierTimes as large. In float16 none of these overflows:
// the sum of two, an element that dropout scales, and gradients from an element that is drawn
// twice.
func (g attentionValues) outliers(x []float64, size float64) {
	const every = 500
	most := min(30000, 60000/g.Dropout.KeepScale(), 6*OutlierTimes*OrOne(size))
	for range 1 + len(x)/every {
		if g.Kind != OutlierKind {
			return
		}
		i := g.IntN(len(x))
		if x[i] *= OutlierTimes; g.DType == dtype.Float16 {
			x[i] = max(-most, min(x[i], most))
		}
	}
}

func (g attentionValues) normal(shape []int) []float64 {
	x := make([]float64, Product(shape))
	for i := range x {
		x[i] = g.NormFloat64()
	}
	return x
}

// eachRow calls f with rows of d elements.
func eachRow(x []float64, d int, f func(i int, row []float64)) {
	for i := range len(x) / d {
		f(i, x[i*d:(i+1)*d])
	}
}

// qkv returns Q, K and V in logical order.
func (g attentionValues) qkv() (q, k, v []float64) {
	d := g.HeadDim
	root := math.Sqrt(float64(d)) // S = scale*root for the default scale is 1
	q, k, v = g.normal(g.QShape()), g.normal(g.KShape()), g.normal(g.VShape())
	switch g.Kind {
	case BigLogitsKind:
		// The first 4 elements make ±1e4: 4*x^2/root = 1e4.
		x := math.Sqrt(1e4 * root / 4)
		for _, t := range [][]float64{q, k} {
			eachRow(t, d, func(_ int, row []float64) {
				sign := math.Copysign(1, g.NormFloat64())
				for e := range 4 {
					row[e] = sign * x
				}
			})
		}
	case HugeKind:
		for _, t := range [][]float64{q, k, v} {
			for i := range t {
				t[i] = math.Copysign(hugeMagnitude(g.DType)*(1-g.Float64()/2), g.NormFloat64())
			}
		}
	case EqualKeysKind:
		eachRow(k, d, func(_ int, row []float64) { copy(row, k[:d]) })
	case OneHotKind:
		x := math.Sqrt(50 * root)
		eachRow(q, d, func(i int, row []float64) { clear(row); row[7*(i%g.SeqQ)%d] = x })
		eachRow(k, d, func(j int, row []float64) { clear(row); row[j%g.SeqKV%d] = x })
	case RisingKind:
		g.ramp(q, k, 8.5*math.Ln2/32)
	case CreepingKind:
		g.ramp(q, k, 4.5*math.Ln2/64)
	case FallingKind:
		g.ramp(q, k, -8.5*math.Ln2/32)
	case LateKind:
		scaleBy(k, 0x1p-8)
		scaleBy(v, 0x1p-4)
		eachRow(q, d, func(i int, row []float64) { row[0] = (120 + float64(i%16)/2) * math.Ln2 * root / 8 })
		eachRow(k, d, func(j int, row []float64) {
			if row[0] = 0; j%g.SeqKV == g.SeqKV/2 {
				row[0] = 8
			}
		})
	case UnevenKind:
		step := 10
		if g.DType == dtype.Float16 {
			step = 4
		}
		for i, t := range [][]float64{q, k, v} {
			eachRow(t, []int{d, d, g.ValueHeadDim()}[i], func(_ int, row []float64) {
				scaleBy(row, math.Ldexp(1, -step*g.IntN(4)))
			})
		}
	case WideKind:
		times := one(g.Rand, [2]float64{50, 1}, [2]float64{1, 50}, [2]float64{50, 50})
		for i, t := range [][]float64{q, k} {
			channel := g.IntN(d)
			eachRow(t, d, func(_ int, row []float64) { row[channel] *= times[i] })
		}
	case AllZeroKind:
		clear(q)
		clear(k)
		clear(v)
	}
	for _, t := range [][]float64{q, k, v} {
		roundTo(t, g.DType)
	}
	return q, k, v
}

// ramp makes the first two elements of Q and K add step*j to S for key j: the first carries multiples
// of 16 keys, the second the rest, since bfloat16 has no more than 8 bits for either.
func (g attentionValues) ramp(q, k []float64, step float64) {
	root := math.Sqrt(float64(g.HeadDim))
	x := float64(dtype.BFloat16.Round(float32(math.Sqrt(math.Abs(step) * root))))
	y := math.Copysign(x, step)
	eachRow(q, g.HeadDim, func(_ int, row []float64) { row[0], row[1] = 4*x, x })
	eachRow(k, g.HeadDim, func(j int, row []float64) {
		j %= g.SeqKV
		row[0], row[1] = float64(j/16*4)*y, float64(j%16)*y
	})
}

// features draws the tensors of features.
//
//	bias           standard normal
//	alibi_slopes   2^(-8*(h+1)/heads), as the paper has them, times 1 + batch/2
//	sinks          one that counts, one that outweighs all keys, two that count, one that is none, ...
func (g attentionValues) features(x Values) {
	if g.Bias.On {
		x["bias"] = g.normal(g.BiasShape())
		roundTo(x["bias"], g.Bias.DType)
		scaleBy(x["bias"], g.Sizes.Bias)
		roundTo(x["bias"], g.Bias.DType)
		g.hideInBias(x["bias"])
	}
	if g.ALiBi != attention.ALiBiOff {
		x["alibi_slopes"] = make([]float64, Product(g.SlopesShape()))
		for i := range x["alibi_slopes"] {
			b, h := i/g.NumHeads, i%g.NumHeads
			x["alibi_slopes"][i] = math.Exp2(-8*float64(h+1)/float64(g.NumHeads)) * (1 + float64(b)/2)
		}
		roundTo(x["alibi_slopes"], dtype.Float32)
	}
	if g.Sinks {
		x["sinks"] = g.normal(g.SinksShape())
		roundTo(x["sinks"], dtype.Float32)
		for h := range x["sinks"] {
			switch h % 5 {
			case 1:
				x["sinks"][h] = 20
			case 4:
				x["sinks"][h] = math.Inf(-1)
			}
		}
	}
	if g.KeyMask {
		x["key_mask"] = make([]float64, Product(g.KeyMaskShape()))
		for i := range x["key_mask"] {
			if g.Mask == RandomMask && i/g.SeqKV != 2 && g.IntN(4) > 0 {
				x["key_mask"][i] = 1
			}
		}
		for b := range g.Batch {
			for j, visible := range g.visible(g.SeqKV) {
				if visible {
					x["key_mask"][b*g.SeqKV+j] = 1
				}
			}
		}
	}
	q, kv := g.CuSeqlens()
	for i := range q {
		x["cu_seqlens_q"], x["cu_seqlens_kv"] = append(x["cu_seqlens_q"], float64(q[i])), append(x["cu_seqlens_kv"], float64(kv[i]))
	}
}

// hideInBias is HidingBias.
func (g attentionValues) hideInBias(bias []float64) {
	if !g.HidingBias {
		return
	}
	if g.Mask != RandomMask {
		eachRow(bias, g.SeqKV, func(_ int, row []float64) {
			for j, visible := range g.visible(g.SeqKV) {
				if !visible {
					row[j] = math.Inf(-1)
				}
			}
		})
		return
	}
	for i := range bias {
		if g.IntN(8) == 0 {
			bias[i] = math.Inf(-1)
		}
	}
}

// visible says for each of n keys whether a Mask other than RandomMask shows it; nil for that.
func (g attentionValues) visible(n int) []bool {
	if g.Mask == RandomMask {
		return nil
	}
	keys := make([]bool, n)
	show := func(from, to int) {
		for j := from; j < to; j++ {
			keys[j] = true
		}
	}
	switch g.Mask {
	case RunsMask:
		shown := g.IntN(2) == 0
		for j := 0; j < n; shown = !shown {
			end := min(n, j+int(math.Exp2(8.5*g.Float64())))
			if shown {
				show(j, end)
			}
			j = end
		}
	case PaddedMask:
		show(0, g.IntN(n+1))
	case LeftPaddedMask:
		show(g.IntN(n+1), n)
	case SparseMask:
		if g.IntN(4) > 0 {
			for range 1 + n/200 {
				keys[g.IntN(n)] = true
			}
		}
	}
	return keys
}

// Hide fills keys and values that masks hide from all rows with NaN.
func (a *Attention) Hide(x Values) Values {
	in, _ := a.inputs(x)
	hidden := Values{"k": append([]float64(nil), x["k"]...), "v": append([]float64(nil), x["v"]...)}
	in.Hidden(a.Problem, func(row int, _ bool) {
		fill(hidden["k"][row*a.HeadDim:][:a.HeadDim], math.NaN())
		fill(hidden["v"][row*a.ValueHeadDim():][:a.ValueHeadDim()], math.NaN())
	})
	return hidden
}
