package attntest

import (
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// Every feature comes alone in every dtype, as each dtype is a kernel of its
// own, and then in float16 and one more type beside what it might disturb.
// Heads are narrow where nothing else matters: less to compile.

// Several is a number of features. Cases with at least that many at once find all that cases of
// single features find, as TestMutations checks. If each choice of features takes long to compile,
// cases with fewer may be left out.
const Several = 3

// windows: one key, part of a tile, several tiles, open to a side; rows that see nothing
// after the end of the keys, keys that no row sees before and after them.
func (t *table) windows() {
	open := attention.Unlimited
	for i, w := range []struct {
		seqQ, seqKV, left, right int
		causal                   bool
		align                    attention.Align
	}{
		{100, 100, 0, 0, false, attention.BottomRight},
		{300, 300, 64, 0, false, attention.BottomRight},
		{300, 300, 40, open, true, attention.BottomRight}, // as 40, 0
		{150, 150, 31, 17, false, attention.BottomRight},
		{65, 190, 20, 5, false, attention.BottomRight}, // keys 0 to 104 are hidden
		{190, 65, 20, 5, false, attention.BottomRight}, // rows 0 to 119 see nothing
		{65, 190, 20, 5, false, attention.TopLeft},     // keys 70 to 189 are hidden
		{190, 65, 20, 5, false, attention.TopLeft},     // rows 85 to 189 see nothing
		{90, 130, open, 9, false, attention.BottomRight},
		{90, 130, 9, open, false, attention.BottomRight},
		{130, 90, 3, 1 << 30, false, attention.TopLeft},
		{1, 300, 100, 0, false, attention.BottomRight}, // decoding
		{70, 70, open, open, false, attention.BottomRight},
	} {
		p := attention.Problem{
			SeqQ: w.seqQ, SeqKV: w.seqKV, HeadDim: t.dims.Feature, NumHeads: 2, Causal: w.causal, CausalAlign: w.align,
			Window: attention.Window{On: true, Left: w.left, Right: w.right},
		}
		types := rotate(i)
		if i == 3 || i == 6 {
			types = dtype.All()
		}
		what := fmt.Sprintf("%dx%d/%d,%d/%s", w.seqQ, w.seqKV, w.left, w.right, mask(w.causal))
		if w.align == attention.TopLeft {
			what += "-top-left"
		}
		t.add("window", what, Case{Problem: p}, types...)
	}
	p := attention.Problem{Batch: 2, NumHeads: 6, NumKVHeads: 2, SeqQ: 90, SeqKV: 140, Window: attention.Window{On: true, Left: 33, Right: 2}}
	t.add("window", "gqa", Case{Problem: p, Q: BSHD, K: BSHD, V: BSHD, O: BSHD, LSE: Padded}, dtype.All()...)
}

// scores: softcap, ALiBi and bias, alone and with one another.
func (t *table) scores() {
	base := attention.Problem{NumHeads: 2, SeqQ: 70, SeqKV: 90, HeadDim: t.dims.Feature}
	for i, c := range []struct {
		softcap, scale float64
		in             Input
		causal         bool
		types          []dtype.DType
	}{
		{2, 0, Normal, false, dtype.All()},
		{30, 0, Normal, true, rotate(0)}, // nearly linear
		{50, 0, BigLogits, false, rotate(1)},
		{0.5, -1, Normal, true, rotate(0)},
		{10, 0, Rising, true, rotate(1)},
	} {
		p := base
		p.Softcap, p.Scale, p.Causal = c.softcap, c.scale, c.causal
		if c.in == Rising {
			p.SeqKV = 150
		}
		t.add("softcap", fmt.Sprintf("%d/%g/%s", i, c.softcap, mask(c.causal)), Case{Problem: p, Input: c.in}, c.types...)
	}
	for i, a := range []attention.ALiBi{attention.ALiBiPerHead, attention.ALiBiPerBatchHead} {
		for j, align := range []attention.Align{attention.BottomRight, attention.TopLeft} {
			p := base
			p.Batch, p.NumHeads, p.NumKVHeads, p.ALiBi, p.CausalAlign, p.Causal = 2, 4, 2, a, align, i == j
			t.add("alibi", fmt.Sprintf("%v/%v/%s", a, align, mask(p.Causal)), Case{Problem: p, Features: Odd}, dtype.All()...)
		}
	}
	for axes := range 8 {
		p := base
		p.Batch, p.NumHeads, p.NumKVHeads, p.Causal = 2, 4, 2, axes%2 == 1
		p.Bias = attention.Bias{On: true, Batch: axes&1 != 0, Heads: axes&2 != 0, Rows: axes&4 != 0}
		types := rotate(axes)
		if axes == 6 {
			types = dtype.All()
		}
		t.add("bias", p.Bias.String(), Case{Problem: p, Features: Layout(axes) % NumLayouts}, types...)
		p.Bias.DType = dtype.Float16 // means the problem's format
		t.add("bias", "own-type"+p.Bias.String()[len("float16"):], Case{Problem: p, Features: Padded}, types...)
	}
	p := base
	p.Bias = attention.Bias{On: true, Rows: true}
	t.add("bias", "hiding", Case{Problem: p, HidingBias: true}, dtype.All()...)
	p.Bias.Rows = false // a key that it hides is hidden from all rows
	t.add("bias", "hiding-keys", Case{Problem: p, HidingBias: true}, dtype.All()...)
	p.Bias.Rows = true
	p.Causal = true
	t.add("bias", "hiding-causal", Case{Problem: p, HidingBias: true, Features: OddOffset}, rotate(0)...)
	p.Softcap = 5
	t.add("pair", "bias-softcap-causal", Case{Problem: p}, rotate(1)...)
	p.Bias, p.ALiBi = attention.Bias{}, attention.ALiBiPerHead
	t.add("pair", "alibi-softcap-causal", Case{Problem: p}, rotate(0)...)
	p.Softcap, p.Window = 0, attention.Window{On: true, Left: 25, Right: 0}
	t.add("pair", "alibi-window-causal", Case{Problem: p}, rotate(1)...)
	p.Causal, p.Window.Right = false, 12
	t.add("pair", "alibi-window", Case{Problem: p}, rotate(0)...)
}

// keyMasks: of a third batch no key is visible.
func (t *table) keyMasks() {
	p := attention.Problem{Batch: 3, NumHeads: 4, NumKVHeads: 2, SeqQ: 60, SeqKV: 75, HeadDim: t.dims.Feature, KeyMask: true}
	t.add("key-mask", "dense", Case{Problem: p, Features: Odd}, dtype.All()...)
	p.Causal = true
	t.add("key-mask", "causal", Case{Problem: p, K: Cache, V: Cache}, dtype.All()...)
	p.Causal, p.Window = false, attention.Window{On: true, Left: 3, Right: 3}
	t.add("pair", "key-mask-window", Case{Problem: p, Features: Padded}, rotate(0)...)
	p.Bias = attention.Bias{On: true, Heads: true}
	t.add("pair", "key-mask-window-bias", Case{Problem: p, HidingBias: true}, rotate(1)...)
	after := p // rows after the keys
	after.SeqQ, after.CausalAlign, after.ALiBi, after.Bias = 110, attention.TopLeft, attention.ALiBiPerBatchHead, attention.Bias{}
	t.add("pair", "key-mask-window-alibi", Case{Problem: after}, rotate(0)...)
	p.Batch, p.SeqQ, p.SeqKV, p.Bias, p.Window, p.Causal = 2, 1, 200, attention.Bias{}, attention.Window{}, true
	t.add("key-mask", "decoding", Case{Problem: p}, rotate(0)...)
	t.hiddenKeys()
}

// hiddenKeys are float32 cases, whose tiles share exponents, with one key in four hidden at
// random, and a causal mask. In November 2026 a kernel had zeros, garbage or NaN in O there on an
// H200, while LSE was right: invocations branched on their own before a reduction over their
// subgroup. The mistake needs hidden and visible keys in each tile, so that the invocations of a
// subgroup differ; many tiles, since few of them show it; and several subgroups that share a
// tile, of which the causal mask hides all from some and not from others.
func (t *table) hiddenKeys() {
	for _, c := range []struct {
		seqQ, seqKV int
		align       attention.Align
		amplitude   float64 // of Q and K
	}{
		{95, 226, attention.TopLeft, 3},     // seven tiles of 32 keys, of which rows see three
		{95, 226, attention.BottomRight, 1}, // all seven, the last in part
		{128, 128, attention.TopLeft, 1},    // whole tiles
		{150, 226, attention.TopLeft, 3},    // more blocks of rows, the last in part
	} {
		t.addHidden(attention.Problem{NumHeads: 2, SeqQ: c.seqQ, SeqKV: c.seqKV, HeadDim: t.dims.Feature, CausalAlign: c.align}, c.amplitude)
	}
}

// addHidden adds a case of hiddenKeys.
func (t *table) addHidden(p attention.Problem, amplitude float64) {
	p.KeyMask, p.Causal = true, true
	what := fmt.Sprintf("%dx%d-d%d/%v/amplitude-%g", p.SeqQ, p.SeqKV, p.HeadDim, p.CausalAlign, amplitude)
	t.add("hidden-keys", what, Case{Problem: p, Sizes: Sizes{Q: amplitude, K: amplitude}}, dtype.Float32)
}

// hiddenKeysAsFound: the sizes at which hiddenKeys was found, which only a GPU compiles soon.
func (t *table) hiddenKeysAsFound() {
	for _, c := range []struct {
		seqQ, seqKV, headDim int
	}{
		{191, 450, 72}, // 381 wrong rows of 955, and 571 in the next run
		{256, 256, 128},
		{191, 450, 80},
		{300, 450, 64},
	} {
		for _, amplitude := range []float64{3, 1} {
			for _, align := range []attention.Align{attention.TopLeft, attention.BottomRight} {
				if c.headDim != 72 && align != attention.TopLeft {
					continue // wrong aligned to the top left
				}
				t.addHidden(attention.Problem{NumHeads: 5, SeqQ: c.seqQ, SeqKV: c.seqKV, HeadDim: c.headDim, CausalAlign: align}, amplitude)
			}
		}
	}
}

// sinks: one that outweighs all keys, one of -Inf, and rows that see only the sink.
func (t *table) sinks() {
	p := attention.Problem{NumHeads: 5, SeqQ: 60, SeqKV: 75, HeadDim: t.dims.Feature, Sinks: true}
	t.add("sinks", "dense", Case{Problem: p}, dtype.All()...)
	p.SeqQ, p.SeqKV, p.Causal = 110, 50, true
	t.add("sinks", "rows-that-see-nothing", Case{Problem: p, Features: Odd}, dtype.All()...)
	p.NumHeads, p.NumKVHeads, p.Batch, p.Window = 8, 2, 2, attention.Window{On: true, Left: 15, Right: 0}
	t.add("pair", "sinks-window-gqa", Case{Problem: p}, rotate(0)...)
	p.Batch, p.SeqQ, p.SeqKV, p.Window, p.Causal, p.KeyMask = 3, 30, 60, attention.Window{}, false, true
	t.add("pair", "sinks-key-mask", Case{Problem: p}, rotate(1)...)
	p.KeyMask, p.SeqKV = false, 150
	t.add("pair", "sinks-rising", Case{Problem: p, Input: Rising}, rotate(0)...)
	p.SeqKV, p.Softcap = 60, 4
	t.add("pair", "sinks-softcap", Case{Problem: p}, rotate(1)...)
}

// packedLengths: lengths of 0 and 1 at the start, between and at the end, more rows
// than keys and the reverse, one sequence that is longer than a tile.
var packedLengths = [][2]int{{0, 3}, {1, 1}, {33, 70}, {5, 0}, {0, 0}, {130, 20}, {17, 17}, {1, 100}, {64, 64}, {2, 0}}

// varlen: packed sequences, dense and causal, with rows and keys that are in no sequence.
func (t *table) varlen() {
	p := attention.Problem{NumHeads: 4, NumKVHeads: 2, HeadDim: t.dims.Feature}
	c := Case{Problem: p, Lengths: packedLengths}
	t.add("varlen", "dense", c, dtype.All()...)
	c.Problem.Causal, c.Slack = true, 9
	t.add("varlen", "causal-slack", c, dtype.All()...)
	c.Q, c.K, c.V, c.O, c.LSE, c.Features = Padded, Odd, FusedQKV, BSHD, Odd, OddOffset
	c.Problem.CausalAlign = attention.TopLeft
	t.add("varlen", "top-left-layouts", c, rotate(0)...)
	one := Case{Problem: p, Lengths: [][2]int{{45, 45}}}
	one.Problem.Causal = true
	t.add("varlen", "one-sequence", one, rotate(1)...)

	c = Case{Problem: p, Lengths: packedLengths}
	c.Problem.Window, c.Problem.Sinks = attention.Window{On: true, Left: 7, Right: 4}, true
	t.add("pair", "varlen-window-sinks", c, rotate(0)...)
	c = Case{Problem: p, Lengths: packedLengths}
	c.Problem.ALiBi, c.Problem.Causal = attention.ALiBiPerBatchHead, true
	t.add("pair", "varlen-alibi-causal", c, rotate(1)...)
	c = Case{Problem: p, Lengths: packedLengths}
	c.Problem.KeyMask, c.Problem.Bias = true, attention.Bias{On: true, Batch: true, Rows: true}
	t.add("pair", "varlen-key-mask-bias", c, rotate(0)...)
	c = Case{Problem: p, Lengths: packedLengths, NoLSE: true}
	c.Problem.ValueDim, c.Problem.Softcap = t.dims.Feature+16, 3
	t.add("pair", "varlen-value-dim-softcap", c, rotate(1)...)
}

// valueDims: narrower and wider than head_dim, in all layouts that pad a row.
func (t *table) valueDims() {
	for i, d := range [][2]int{{64, 128}, {128, 64}, {40, 24}, {8, 72}, {72, 8}, {192, 128}, {32, 256}} {
		p := attention.Problem{NumHeads: 4, NumKVHeads: 2, SeqQ: 70, SeqKV: 90, HeadDim: d[0], ValueDim: d[1], Causal: i%2 == 1}
		l := []Layout{Packed, BSHD, Padded, Odd}[i%4]
		types := rotate(i)
		if i < 4 {
			types = dtype.All()
		}
		t.add("value-dim", fmt.Sprintf("%dto%d/%s", d[0], d[1], mask(p.Causal)), Case{Problem: p, Q: l, K: l, V: l, O: l, LSE: l}, types...)
	}
}

// dropouts: rates, offsets whose sum with the head carries into the upper half, and masks together
// with dropout.
func (t *table) dropouts() {
	base := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 70, SeqKV: 90, HeadDim: t.dims.Feature}
	seeded := func(p float64) attention.Dropout {
		return attention.Dropout{P: p, Seeded: true, Seed: 0x9e3779b97f4a7c15, Offset: 1<<32 - 3}
	}
	p := base
	p.Dropout = seeded(0.1)
	t.add("dropout", "0.1", Case{Problem: p}, dtype.All()...)
	p.Dropout, p.Causal = seeded(0.5), true
	t.add("dropout", "0.5-causal", Case{Problem: p}, dtype.All()...)
	p.Dropout = attention.Dropout{P: 0.9, Seeded: true}
	t.add("dropout", "0.9-causal-seed-0", Case{Problem: p}, rotate(0)...)
	p.Dropout, p.Sinks, p.Window = seeded(0.3), true, attention.Window{On: true, Left: 21, Right: 0}
	t.add("pair", "dropout-sinks-window", Case{Problem: p}, rotate(1)...)
	p = base
	p.Dropout, p.KeyMask, p.Bias = seeded(0.3), true, attention.Bias{On: true, Heads: true, Rows: true}
	t.add("pair", "dropout-key-mask-bias", Case{Problem: p}, rotate(0)...)
	c := Case{Problem: base, Lengths: packedLengths}
	c.Problem.Causal, c.Problem.Dropout = true, seeded(0.2)
	t.add("pair", "dropout-varlen-causal", c, rotate(1)...)
}

// everything at once, packed and not.
func (t *table) everything() {
	p := attention.Problem{
		Batch: 3, NumHeads: 6, NumKVHeads: 2, SeqQ: 70, SeqKV: 110, HeadDim: t.dims.All, ValueDim: t.dims.Values, Causal: true,
		Window: attention.Window{On: true, Left: 50, Right: 5}, Softcap: 6, ALiBi: attention.ALiBiPerBatchHead,
		Bias: attention.Bias{On: true, DType: dtype.Float16, Batch: true, Rows: true}, KeyMask: true, Sinks: true,
		Dropout: attention.Dropout{P: 0.2, Seeded: true, Seed: 11, Offset: 100},
	}
	t.add("all", "batch", Case{Problem: p, Q: BSHD, K: Cache, V: Padded, O: SBHD, LSE: Odd, Features: Odd}, dtype.All()...)
	t.add("all", "packed", Case{Problem: p, Lengths: packedLengths, Slack: 5, HidingBias: true}, dtype.All()...)
}
