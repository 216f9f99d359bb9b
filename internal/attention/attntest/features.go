package attntest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/cover"
)

// Several is a number of features. Cases with at least that many at once find all that cases of
// single features find, as TestMistakes checks: where each choice takes long to compile, cases with
// fewer may be left out. Every feature comes alone in every dtype, then in pairs.
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
		p := problem{
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
		t.add("window", what, calls{Problem: p}, types...)
	}
	p := problem{Batch: 2, NumHeads: 6, NumKVHeads: 2, SeqQ: 90, SeqKV: 140, Window: attention.Window{On: true, Left: 33, Right: 2}}
	t.add("window", "gqa", laid(p, "bbbbdp"), dtype.All()...)
}

// scores: softcap, ALiBi and bias, alone and with one another.
func (t *table) scores() {
	base := problem{NumHeads: 2, SeqQ: 70, SeqKV: 90, HeadDim: t.dims.Feature}
	for i, c := range []struct {
		softcap, scale float64
		kind           string
		causal         bool
		types          []dtype.DType
	}{
		{2, 0, "", false, dtype.All()},
		{30, 0, "", true, rotate(0)}, // nearly linear
		{50, 0, call.BigLogitsKind, false, rotate(1)},
		{0.5, -1, "", true, rotate(0)},
		{10, 0, call.RisingKind, true, rotate(1)},
	} {
		p := base
		p.Softcap, p.Scale, p.Causal = c.softcap, c.scale, c.causal
		if c.kind == call.RisingKind {
			p.SeqKV = 150
		}
		t.add("softcap", fmt.Sprintf("%d/%g/%s", i, c.softcap, mask(c.causal)), calls{Problem: p, Data: call.Data{Kind: c.kind}}, c.types...)
	}
	for i, a := range []attention.ALiBi{attention.ALiBiPerHead, attention.ALiBiPerBatchHead} {
		for j, align := range []attention.Align{attention.BottomRight, attention.TopLeft} {
			p := base
			p.Batch, p.NumHeads, p.NumKVHeads, p.ALiBi, p.CausalAlign, p.Causal = 2, 4, 2, a, align, i == j
			t.add("alibi", fmt.Sprintf("%v/%v/%s", a, align, mask(p.Causal)), laid(p, "pppppo"), dtype.All()...)
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
		t.add("bias", p.Bias.String(), laid(p, "ppppp"+layouts[axes:axes+1]), types...)
		p.Bias.DType = dtype.Float16 // means the problem's format
		t.add("bias", "own-type"+p.Bias.String()[len("float16"):], laid(p, "pppppd"), types...)
	}
	p := base
	p.Bias = attention.Bias{On: true, Rows: true}
	t.add("bias", "hiding", calls{Problem: p, HidingBias: true}, dtype.All()...)
	p.Bias.Rows = false // a key that it hides is hidden from all rows
	t.add("bias", "hiding-keys", calls{Problem: p, HidingBias: true}, dtype.All()...)
	p.Bias.Rows = true
	p.Causal = true
	t.add("bias", "hiding-causal", calls{Problem: p, HidingBias: true, Data: call.Data{Layout: "pppppx"}}, rotate(0)...)
	p.Softcap = 5
	t.add("pair", "bias-softcap-causal", calls{Problem: p}, rotate(1)...)
	p.Bias, p.ALiBi = attention.Bias{}, attention.ALiBiPerHead
	t.add("pair", "alibi-softcap-causal", calls{Problem: p}, rotate(0)...)
	p.Softcap, p.Window = 0, attention.Window{On: true, Left: 25, Right: 0}
	t.add("pair", "alibi-window-causal", calls{Problem: p}, rotate(1)...)
	p.Causal, p.Window.Right = false, 12
	t.add("pair", "alibi-window", calls{Problem: p}, rotate(0)...)
}

// keyMasks: of a third batch no key is visible.
func (t *table) keyMasks() {
	p := problem{Batch: 3, NumHeads: 4, NumKVHeads: 2, SeqQ: 60, SeqKV: 75, HeadDim: t.dims.Feature, KeyMask: true}
	t.add("key-mask", "dense", laid(p, "pppppo"), dtype.All()...)
	p.Causal = true
	t.add("key-mask", "causal", laid(p, "pccppp"), dtype.All()...)
	p.Causal, p.Window = false, attention.Window{On: true, Left: 3, Right: 3}
	t.add("pair", "key-mask-window", laid(p, "pppppd"), rotate(0)...)
	p.Bias = attention.Bias{On: true, Heads: true}
	t.add("pair", "key-mask-window-bias", calls{Problem: p, HidingBias: true}, rotate(1)...)
	after := p // rows after the keys
	after.SeqQ, after.CausalAlign, after.ALiBi, after.Bias = 110, attention.TopLeft, attention.ALiBiPerBatchHead, attention.Bias{}
	t.add("pair", "key-mask-window-alibi", calls{Problem: after}, rotate(0)...)
	p.Batch, p.SeqQ, p.SeqKV, p.Bias, p.Window, p.Causal = 2, 1, 200, attention.Bias{}, attention.Window{}, true
	t.add("key-mask", "decoding", calls{Problem: p}, rotate(0)...)
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
		t.addHidden(problem{NumHeads: 2, SeqQ: c.seqQ, SeqKV: c.seqKV, HeadDim: t.dims.Feature, CausalAlign: c.align}, c.amplitude)
	}
}

// addHidden adds a case of hiddenKeys.
func (t *table) addHidden(p attention.Problem, amplitude float64) {
	p.KeyMask, p.Causal = true, true
	what := fmt.Sprintf("%dx%d-d%d/%v/amplitude-%g", p.SeqQ, p.SeqKV, p.HeadDim, p.CausalAlign, amplitude)
	t.add("hidden-keys", what, calls{Problem: p, Sizes: call.Sizes{Q: amplitude, K: amplitude}}, dtype.Float32)
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
				t.addHidden(problem{NumHeads: 5, SeqQ: c.seqQ, SeqKV: c.seqKV, HeadDim: c.headDim, CausalAlign: align}, amplitude)
			}
		}
	}
}

// sinks: one that outweighs all keys, one of -Inf, and rows that see only the sink.
func (t *table) sinks() {
	p := problem{NumHeads: 5, SeqQ: 60, SeqKV: 75, HeadDim: t.dims.Feature, Sinks: true}
	t.add("sinks", "dense", calls{Problem: p}, dtype.All()...)
	p.SeqQ, p.SeqKV, p.Causal = 110, 50, true
	t.add("sinks", "rows-that-see-nothing", laid(p, "pppppo"), dtype.All()...)
	p.NumHeads, p.NumKVHeads, p.Batch, p.Window = 8, 2, 2, attention.Window{On: true, Left: 15, Right: 0}
	t.add("pair", "sinks-window-gqa", calls{Problem: p}, rotate(0)...)
	p.Batch, p.SeqQ, p.SeqKV, p.Window, p.Causal, p.KeyMask = 3, 30, 60, attention.Window{}, false, true
	t.add("pair", "sinks-key-mask", calls{Problem: p}, rotate(1)...)
	p.KeyMask, p.SeqKV = false, 150
	t.add("pair", "sinks-rising", calls{Problem: p, Data: call.Data{Kind: call.RisingKind}}, rotate(0)...)
	p.SeqKV, p.Softcap = 60, 4
	t.add("pair", "sinks-softcap", calls{Problem: p}, rotate(1)...)
}

// packedLengths: lengths of 0 and 1 at the start, between and at the end, more rows
// than keys and the reverse, one sequence that is longer than a tile.
var packedLengths = [][2]int{{0, 3}, {1, 1}, {33, 70}, {5, 0}, {0, 0}, {130, 20}, {17, 17}, {1, 100}, {64, 64}, {2, 0}}

// varlen: packed sequences, dense and causal, with rows and keys that are in no sequence.
func (t *table) varlen() {
	p := problem{NumHeads: 4, NumKVHeads: 2, HeadDim: t.dims.Feature}
	c := calls{Problem: p, Lengths: packedLengths}
	t.add("varlen", "dense", c, dtype.All()...)
	c.Problem.Causal, c.Slack = true, 9
	t.add("varlen", "causal-slack", c, dtype.All()...)
	c.Layout = "dofbox"
	c.Problem.CausalAlign = attention.TopLeft
	t.add("varlen", "top-left-layouts", c, rotate(0)...)
	one := calls{Problem: p, Lengths: [][2]int{{45, 45}}}
	one.Problem.Causal = true
	t.add("varlen", "one-sequence", one, rotate(1)...)

	c = calls{Problem: p, Lengths: packedLengths}
	c.Problem.Window, c.Problem.Sinks = attention.Window{On: true, Left: 7, Right: 4}, true
	t.add("pair", "varlen-window-sinks", c, rotate(0)...)
	c = calls{Problem: p, Lengths: packedLengths}
	c.Problem.ALiBi, c.Problem.Causal = attention.ALiBiPerBatchHead, true
	t.add("pair", "varlen-alibi-causal", c, rotate(1)...)
	c = calls{Problem: p, Lengths: packedLengths}
	c.Problem.KeyMask, c.Problem.Bias = true, attention.Bias{On: true, Batch: true, Rows: true}
	t.add("pair", "varlen-key-mask-bias", c, rotate(0)...)
	c = calls{Problem: p, Lengths: packedLengths, NoLSE: true}
	c.Problem.ValueDim, c.Problem.Softcap = t.dims.Feature+16, 3
	t.add("pair", "varlen-value-dim-softcap", c, rotate(1)...)
}

// valueDims: narrower and wider than head_dim, in all layouts that pad a row.
func (t *table) valueDims() {
	for i, d := range [][2]int{{64, 128}, {128, 64}, {40, 24}, {8, 72}, {72, 8}, {192, 128}, {32, 256}} {
		p := problem{NumHeads: 4, NumKVHeads: 2, SeqQ: 70, SeqKV: 90, HeadDim: d[0], ValueDim: d[1], Causal: i%2 == 1}
		types := rotate(i)
		if i < 4 {
			types = dtype.All()
		}
		t.add("value-dim", fmt.Sprintf("%dto%d/%s", d[0], d[1], mask(p.Causal)), laid(p, strings.Repeat("pbdo"[i%4:i%4+1], 5)+"p"), types...)
	}
}

// dropouts: rates, offsets whose sum with the head carries into the upper half, and masks together
// with dropout.
func (t *table) dropouts() {
	base := problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 70, SeqKV: 90, HeadDim: t.dims.Feature}
	seeded := func(p float64) attention.Dropout {
		return attention.Dropout{P: p, Seeded: true, Seed: 0x9e3779b97f4a7c15, Offset: 1<<32 - 3}
	}
	p := base
	p.Dropout = seeded(0.1)
	t.add("dropout", "0.1", calls{Problem: p}, dtype.All()...)
	p.Dropout, p.Causal = seeded(0.5), true
	t.add("dropout", "0.5-causal", calls{Problem: p}, dtype.All()...)
	p.Dropout = attention.Dropout{P: 0.9, Seeded: true}
	t.add("dropout", "0.9-causal-seed-0", calls{Problem: p}, rotate(0)...)
	p.Dropout, p.Sinks, p.Window = seeded(0.3), true, attention.Window{On: true, Left: 21, Right: 0}
	t.add("pair", "dropout-sinks-window", calls{Problem: p}, rotate(1)...)
	p = base
	p.Dropout, p.KeyMask, p.Bias = seeded(0.3), true, attention.Bias{On: true, Heads: true, Rows: true}
	t.add("pair", "dropout-key-mask-bias", calls{Problem: p}, rotate(0)...)
	c := calls{Problem: base, Lengths: packedLengths}
	c.Problem.Causal, c.Problem.Dropout = true, seeded(0.2)
	t.add("pair", "dropout-varlen-causal", c, rotate(1)...)
}

// everything at once, packed and not.
func (t *table) everything() {
	p := problem{
		Batch: 3, NumHeads: 6, NumKVHeads: 2, SeqQ: 70, SeqKV: 110, HeadDim: t.dims.All, ValueDim: t.dims.Values, Causal: true,
		Window: attention.Window{On: true, Left: 50, Right: 5}, Softcap: 6, ALiBi: attention.ALiBiPerBatchHead,
		Bias: attention.Bias{On: true, DType: dtype.Float16, Batch: true, Rows: true}, KeyMask: true, Sinks: true,
		Dropout: attention.Dropout{P: 0.2, Seeded: true, Seed: 11, Offset: 100},
	}
	t.add("all", "batch", laid(p, "bcdsoo"), dtype.All()...)
	t.add("all", "packed", calls{Problem: p, Lengths: packedLengths, Slack: 5, HidingBias: true}, dtype.All()...)
}

// gradients has other dO, and a gradient of LSE, which every path adds to the same place, beside what it
// might disturb.
func (t *table) gradients() {
	p := problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 50, SeqKV: 70, HeadDim: t.dims.Odd}
	for _, do := range []call.UpstreamKind{call.ZeroDO, call.OneHotDO} {
		for _, causal := range []bool{false, true} {
			p.Causal = causal
			t.add("do", fmt.Sprintf("%v/%s", do, mask(causal)), calls{Problem: p, DO: do}, dtype.All()...)
		}
	}
	t.add("dlse", "causal", calls{Problem: p, DLSE: true}, dtype.All()...)
	t.add("dlse", "zero-do", calls{Problem: p, DLSE: true, DO: call.ZeroDO}, dtype.Float32)
	t.add("dlse", "layouts", calls{Problem: p, DLSE: true, Data: call.Data{Layout: "bcdoop"}}, dtype.All()...)
	t.add("dlse", "odd", calls{Problem: p, DLSE: true, Data: call.Data{Layout: "xoxoxp"}}, rotate(0)...)
	p.SeqQ, p.SeqKV = 70, 30
	t.add("dlse", "rows-that-see-nothing", calls{Problem: p, DLSE: true}, dtype.All()...)
	p.Sinks = true
	t.add("dlse", "sinks-rows-that-see-nothing", calls{Problem: p, DLSE: true}, dtype.All()...)
	p.SeqKV, p.Softcap, p.Bias, p.KeyMask = 70, 4, attention.Bias{On: true, Heads: true}, true
	t.add("dlse", "sinks-softcap-bias-key-mask", calls{Problem: p, DLSE: true, HidingBias: true}, rotate(1)...)
	c := calls{Problem: problem{NumHeads: 4, NumKVHeads: 2, HeadDim: t.dims.Feature, Causal: true, Sinks: true}, Lengths: packedLengths, Slack: 6, DLSE: true}
	t.add("dlse", "varlen-sinks", c, rotate(0)...)
	c.Problem.Dropout = attention.Dropout{P: 0.3, Seeded: true, Seed: 21}
	t.add("dlse", "varlen-sinks-dropout", c, rotate(1)...)
}

// KernelStandIns returns cases that stand for all in tests of tiles whose kernels take long to
// compile. Every choice of a kernel that occurs in some case occurs in one of them, and all cases
// of the same kernel are among them. StandIns covers every two choices together, on the tiles of
// the tuning table.
func KernelStandIns(cases []*Case) []*Case {
	return cover.Each(cases, func(c *Case) []any {
		// A kernel has one constant for the alignment of all its tensors; StandIns covers that of each.
		return append(c.kernel(), slices.ContainsFunc([]int{0, 1, 2, 3}, c.odd))
	})
}

// StandIns returns the cases that stand for a suite. Beside the choices of kernels they cover each
// length, mask, layout of LSE and kind of values, which some mistakes need.
func StandIns(cases []*Case) []*Case {
	kernel := func(c *Case) []any { return append(c.kernel(), c.odd(0), c.odd(1), c.odd(2), c.odd(3)) }
	return cover.Pairs(cases, kernel, func(c *Case) []any {
		p := c.Problem
		return []any{
			p.SeqQ, p.SeqKV, []any{p.Causal, p.CausalAlign, p.SeqQ > p.SeqKV, p.SeqQ < p.SeqKV}, p.Window, c.Slack > 0,
			p.Scale, p.Softcap, p.ALiBi, []any{p.Bias.String(), c.letter(5)}, c.HidingBias, c.Mask,
			c.Kind, c.Sizes, c.DO, c.letter(4), []any{c.DLSE, c.letter(4)},
		}
	})
}

// kernel returns the choices that decide on a kernel, but for alignments.
func (c *Case) kernel() []any {
	p := c.Problem
	return []any{
		p.DType.String(), p.HeadDim, p.ValueHeadDim(), p.Causal, p.SeqQ == 1, c.NoLSE, strings.Join(p.Features(), " "), p.NumHeads > p.NumKVHeads,
	}
}

// letter returns the layout of a tensor: of q, k, v, o, lse, features.
func (c *Case) letter(i int) string {
	if c.Layout == "" {
		return call.Packed
	}
	return c.Layout[i%len(c.Layout):][:1]
}

// odd reports whether rows of a tensor lie at odd multiples of elements.
func (c *Case) odd(i int) bool { return strings.Contains(call.OddLayouts, c.letter(i)) }
