package attntest

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// A Case is one problem with its inputs and the layout of its tensors.
type Case struct {
	// Name is unique: group/what/dtype.
	Name    string
	Problem attention.Problem
	Input   Input

	// Q, K, V, O and LSE each have a layout; the tensors of features share one.
	Q, K, V, O, LSE, Features Layout

	// Lengths are the rows and keys of each sequence of a Varlen, from which its
	// Problem's Batch, SeqQ, SeqKV and Varlen follow; nil is none. Slack rows of
	// Q, K and V after the last sequence belong to none.
	Lengths [][2]int
	Slack   int

	// HidingBias puts -Inf into the bias: for one key in 8, or in the pattern of Mask if that
	// is not RandomMask.
	HidingBias bool

	// Mask says which keys a KeyMask hides.
	Mask MaskKind

	// NoLSE passes no LSE.
	NoLSE bool

	// DO is the kind of values in the gradient of O. DLSE says that LSE has a gradient. Only
	// the backward pass has them.
	DO   Gradient
	DLSE bool

	// Sizes multiply the values of tensors. Outliers makes a few elements of Q, K, V and
	// dO 100 times as large.
	Sizes    Sizes
	Outliers bool

	// Seed is the seed of the values. 0: it follows from the name of the case.
	Seed uint64

	// Sample is about the most operations of a reference; 0 is no limit. A larger case is
	// compared on some of its rows, and in the backward pass on some of its keys. Gradients of
	// bias and sinks then only have to be finite. Memory around tensors, elements that are not
	// written and the bits of a second run are checked everywhere.
	Sample float64
}

// Sizes are factors of the values of tensors; 0 stands for 1.
type Sizes struct{ Q, K, V, DO, DLSE, Bias float64 }

// A Set is a choice of cases by cost.
type Set uint8

const (
	// Short is about 1.2e9 operations for all dtypes together, the largest case
	// 0.1e9. Each case runs twice: seconds on a software driver that does
	// 1 GFLOP/s. Heads are narrow, as such a driver takes seconds to compile a
	// kernel, and the longer the wider they are.
	Short Set = iota
	// Full has wider heads, and adds batches, heads and lengths that only a GPU does in
	// seconds, about 8e10 operations.
	Full
)

// HeadDims are the sizes of heads in cases that are about something else.
type HeadDims struct {
	Usual   int
	Odd     int // not a multiple of 16, for tests of tile edges and layouts
	Wide    int // beside mixed layouts
	Feature int // for tests of features and masks, each choice of which is another kernel
	All     int // beside all features at once
	Values  int // of V there
}

// HeadDims returns those of the set.
func (s Set) HeadDims() HeadDims {
	if s == Short {
		return HeadDims{Usual: 24, Odd: 24, Wide: 24, Feature: 8, All: 16, Values: 24}
	}
	return HeadDims{Usual: 64, Odd: 40, Wide: 128, Feature: 32, All: 40, Values: 72}
}

// Cases returns the cases of a set, in the order of the table.
//
// The table is not a product of everything with everything. Each dimension
// varies on its own beside small, odd values of the others:
//
//   - shapes, tile edges, head dims, layouts and extreme inputs come in every
//     dtype, since each dtype is a kernel of its own on each path;
//   - masks, GQA ratios and scales come in float16, which every path takes, and rotate
//     through the others: the index arithmetic is the same source for all;
//   - features come alone in every dtype, and in pairs and all together, on small
//     problems (cases_features.go);
//   - the two 1023x1024 shapes run causal or not, not both, in each dtype.
//
// Left out: NaN in keys that some row sees and another does not; strides of 0 or
// below (not promised); head_dim that is no multiple
// of 8 (refused); NaN or Inf in Q, K, V (an implementation may do anything
// with them); K and V beyond 2^31 elements (no test machine has the time).
func Cases(set Set) []*Case {
	t := table{dims: set.HeadDims()}
	t.shapes()
	t.tileEdges()
	t.headDims()
	t.masks()
	t.groups()
	t.decode()
	t.scales()
	t.layouts()
	t.extremes()
	for _, feature := range []func(){t.windows, t.scores, t.keyMasks, t.sinks, t.varlen, t.valueDims, t.dropouts, t.everything} {
		feature()
	}
	if set == Full {
		t.hiddenKeysAsFound()
		t.large()
	}
	return t.cases
}

// A table collects cases.
type table struct {
	cases []*Case
	dims  HeadDims
}

// add appends a case named group/what/dtype, for each of the dtypes. The zero
// values of Problem stand for 1 (batch, heads), num_heads (num_kv_heads), and
// the usual head_dim.
func (t *table) add(group, what string, c Case, types ...dtype.DType) {
	if c.Lengths != nil {
		c.packed()
	}
	p := &c.Problem
	for _, s := range []*int{&p.Batch, &p.NumHeads} {
		if *s == 0 {
			*s = 1
		}
	}
	if p.NumKVHeads == 0 {
		p.NumKVHeads = p.NumHeads
	}
	if p.HeadDim == 0 {
		p.HeadDim = t.dims.Usual
	}
	for _, dt := range types {
		c := c
		c.Problem.DType = dt
		if p.Bias.DType != dtype.Float32 {
			c.Problem.Bias.DType = dt // that of the problem
		}
		c.Problem.Scale = c.Input.ScaleFor(c.Problem)
		c.Name = fmt.Sprintf("%s/%s/%v", group, what, dt)
		t.cases = append(t.cases, &c)
	}
}

// rotate returns float16 and, in turn, one of the other types.
func rotate(i int) []dtype.DType {
	return []dtype.DType{dtype.Float16, []dtype.DType{dtype.Float32, dtype.BFloat16}[i%2]}
}

func mask(causal bool) string {
	if causal {
		return "causal"
	}
	return "dense"
}

// shapes: the lengths of FlashAttention's tests.
func (t *table) shapes() {
	for _, s := range []struct{ seqQ, seqKV int }{
		{1, 1},     // one key: O = V exactly, LSE = S
		{3, 3},     // smaller than any tile
		{64, 32},   // whole tiles; causal: 32 rows see nothing
		{113, 203}, // primes, fewer queries than keys
		{239, 1},   // one key for many rows; causal: only the last row sees it
		{799, 3},   // many tiles of rows that see nothing, then three that do
		{1, 239},   // decoding: one row, many keys
		{203, 113}, // primes, causal: a tile that is partly without keys
	} {
		for _, causal := range []bool{false, true} {
			what := fmt.Sprintf("%dx%d/%s", s.seqQ, s.seqKV, mask(causal))
			t.add("shape", what, Case{Problem: attention.Problem{SeqQ: s.seqQ, SeqKV: s.seqKV, NumHeads: 2, Causal: causal}}, dtype.All()...)
		}
	}
	// Long enough for many tiles each way, one off on one side.
	for i, dt := range dtype.All() {
		for j, s := range [][2]int{{1023, 1024}, {1024, 1023}} {
			causal := (i+j)%2 == 1
			what := fmt.Sprintf("%dx%d/%s", s[0], s[1], mask(causal))
			t.add("shape", what, Case{Problem: attention.Problem{SeqQ: s[0], SeqKV: s[1], Causal: causal}}, dt)
		}
	}
}

// tileEdges: one below, at, and one above each tile size a kernel may use,
// crosswise, so that a row tail meets a key head and the reverse.
func (t *table) tileEdges() {
	for _, edge := range []int{16, 32, 64, 128} {
		for i, s := range [][2]int{{edge - 1, edge + 1}, {edge, edge}, {edge + 1, edge - 1}, {1, edge + 1}} {
			for j, dt := range dtype.All() {
				causal := (i+j)%2 == 0
				what := fmt.Sprintf("%dx%d/%s", s[0], s[1], mask(causal))
				t.add("edge", what, Case{Problem: attention.Problem{SeqQ: s[0], SeqKV: s[1], HeadDim: t.dims.Odd, Causal: causal}}, dt)
			}
		}
	}
}

// headDims: every size that kernels are tuned for, and sizes that fill no
// power of two and no 16- or 32-wide matrix. Two heads, so that a store that
// runs over head_dim hits a neighbour.
func (t *table) headDims() {
	for i, d := range []int{8, 24, 40, 64, 72, 96, 128, 160, 192, 256} {
		for j, dt := range dtype.All() {
			p := attention.Problem{NumHeads: 2, SeqQ: 70, SeqKV: 90, HeadDim: d, Causal: (i+j)%2 == 1}
			t.add("head-dim", fmt.Sprintf("%d/%s", d, mask(p.Causal)), Case{Problem: p}, dt)
		}
	}
}

// masks: both alignments, wide and tall, within one tile and over several.
func (t *table) masks() {
	for i, s := range [][2]int{{2, 5}, {5, 2}, {65, 130}, {130, 65}, {100, 100}} {
		for _, align := range []attention.Align{attention.BottomRight, attention.TopLeft} {
			p := attention.Problem{SeqQ: s[0], SeqKV: s[1], HeadDim: t.dims.Feature, Causal: true, CausalAlign: align}
			t.add("mask", fmt.Sprintf("%dx%d/%v", s[0], s[1], align), Case{Problem: p}, rotate(i)...)
		}
	}
}

// groups: ratios of query to key heads 1, 2, 3, 8 and all. There are two batches, so that a wrong
// group reads the keys of another batch or head.
func (t *table) groups() {
	for i, h := range [][2]int{{4, 4}, {4, 2}, {6, 2}, {8, 1}, {16, 2}, {5, 1}} {
		p := attention.Problem{Batch: 2, NumHeads: h[0], NumKVHeads: h[1], SeqQ: 33, SeqKV: 47, Causal: i%2 == 1}
		t.add("heads", fmt.Sprintf("%dto%d", h[0], h[1]), Case{Problem: p, Q: BSHD, K: BSHD, V: BSHD, O: BSHD, LSE: Padded}, rotate(i)...)
		t.add("heads", fmt.Sprintf("%dto%d/packed", h[0], h[1]), Case{Problem: p}, dtype.Float16)
	}
}

// decode: one query for each head, with heads in groups. A kernel may take the heads of a group as
// rows of one matrix, and then walks over heads of Q, O and LSE in any layout. Aligned to the top
// left the row sees one key.
func (t *table) decode() {
	for i, l := range []struct{ q, o, lse Layout }{{Packed, Packed, Packed}, {BSHD, Cache, Padded}, {Odd, Padded, Odd}} {
		p := attention.Problem{Batch: 2, NumHeads: 12, NumKVHeads: 4, SeqQ: 1, SeqKV: 203, HeadDim: t.dims.Odd}
		for _, m := range []string{"dense", "causal", "top-left"} {
			if p.Causal = m != "dense"; m == "top-left" {
				p.CausalAlign = attention.TopLeft
			}
			t.add("decode", fmt.Sprintf("q-%v/%s", l.q, m), Case{Problem: p, Q: l.q, K: BSHD, V: Cache, O: l.o, LSE: l.lse}, rotate(i)...)
		}
	}
	p := attention.Problem{NumHeads: 9, NumKVHeads: 1, SeqQ: 1, SeqKV: 130, HeadDim: t.dims.Odd}
	t.add("decode", "one-group", Case{Problem: p}, dtype.All()...)
	t.add("decode", "no-lse", Case{Problem: p, NoLSE: true}, dtype.Float16)
}

// scales: far from the default, tiny (P nearly uniform), and negative (the
// largest product is then the smallest score).
func (t *table) scales() {
	for i, scale := range []float64{1e-3, 0.3, 1, -0.3} {
		p := attention.Problem{NumHeads: 2, SeqQ: 50, SeqKV: 77, Scale: scale, Causal: i%2 == 1}
		t.add("scale", fmt.Sprint(scale), Case{Problem: p}, rotate(i)...)
	}
}

// layouts: each for all tensors together, then mixed so that no two tensors
// share strides, then without LSE.
func (t *table) layouts() {
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 37, SeqKV: 53, HeadDim: t.dims.Odd}
	for l := range NumLayouts {
		p.Causal = l%2 == 1
		t.add("layout", l.String(), Case{Problem: p, Q: l, K: l, V: l, O: l, LSE: l}, dtype.All()...)
	}
	p.Causal = false
	p.HeadDim = t.dims.Wide
	t.add("layout", "mixed", Case{Problem: p, Q: BSHD, K: Cache, V: Padded, O: SBHD, LSE: Odd}, dtype.All()...)
	t.add("layout", "mixed-odd", Case{Problem: p, Q: Odd, K: OddOffset, V: Odd, O: Odd, LSE: OddOffset}, dtype.All()...)
	t.add("layout", "odd-keys", Case{Problem: p, Q: Packed, K: Odd, V: Packed, O: BSHD}, dtype.All()...)
	t.add("layout", "odd-values", Case{Problem: p, Q: Packed, K: Packed, V: Odd, O: Packed}, dtype.All()...)
	t.add("layout", "no-lse", Case{Problem: p, O: Padded, NoLSE: true}, dtype.All()...)
}

// extremes: inputs at which arithmetic breaks first. 64 to 520 keys, so that
// several tiles of any size follow each other.
func (t *table) extremes() {
	for _, e := range []struct {
		what   string
		in     Input
		seqKV  int
		causal bool
		scale  float64
	}{
		{"big-logits", BigLogits, 150, false, 0},
		{"big-logits-causal", BigLogits, 150, true, 0}, // rows whose every score is -1e4
		{"big-logits-negative-scale", BigLogits, 150, false, -1 / math.Sqrt(float64(t.dims.Usual))},
		{"huge", Huge, 150, false, 0},
		{"equal-keys", EqualKeys, 150, false, 0},
		{"one-hot", OneHot, 64, false, 0},
		{"one-hot-long", OneHot, 150, true, 0},
		{"rising", Rising, 300, false, 0},
		{"rising-long", Rising, 700, false, 0}, // beyond the range of weights in bfloat16
		{"rising-causal", Rising, 150, true, 0},
		{"creeping", Creeping, 520, false, 0},
		{"falling", Falling, 300, false, 0},
		{"uneven", Uneven, 150, false, 0},
		{"zero", Zero, 100, true, 0},
	} {
		p := attention.Problem{NumHeads: 4, NumKVHeads: 2, SeqQ: 96, SeqKV: e.seqKV, Causal: e.causal, Scale: e.scale}
		if e.seqKV > 200 {
			p.NumHeads, p.SeqQ = 2, 48
		}
		t.add("extreme", e.what, Case{Problem: p, Input: e.in}, dtype.All()...)
	}
	// All rows but one see no key: in most workgroups the loop over keys never runs.
	p := attention.Problem{SeqQ: 200, SeqKV: 1, Causal: true, NumHeads: 3}
	t.add("extreme", "almost-nothing-seen", Case{Problem: p, O: Padded, LSE: Padded}, dtype.All()...)
}

// large: many workgroups at once, many tiles in a row.
func (t *table) large() {
	for _, c := range []struct {
		what  string
		types []dtype.DType
		p     attention.Problem
		l     Layout
	}{
		// A decoder layer, grouped heads.
		{"gqa-d128", dtype.All(), attention.Problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 1024, SeqKV: 1024, HeadDim: 128, Causal: true}, Packed},
		{"gqa-d128-bshd", rotate(1), attention.Problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 1000, SeqKV: 1100, HeadDim: 128, Causal: true}, BSHD},
		// Long rows, one off.
		{"long-d64", dtype.All(), attention.Problem{NumHeads: 2, SeqQ: 4095, SeqKV: 4097, HeadDim: 64}, Packed},
		{"long-d64-causal", rotate(1), attention.Problem{NumHeads: 2, SeqQ: 4097, SeqKV: 4095, HeadDim: 64, Causal: true}, BSHD},
		// Very many keys for few rows, and the reverse.
		{"many-keys", rotate(0), attention.Problem{Batch: 2, NumHeads: 4, SeqQ: 5, SeqKV: 30011, HeadDim: 128, Causal: true}, Cache},
		{"many-rows", rotate(1), attention.Problem{NumHeads: 4, NumKVHeads: 1, SeqQ: 20011, SeqKV: 70, HeadDim: 64}, Odd},
		// Many small heads: more workgroups than the device holds at once.
		{"many-heads", dtype.All(), attention.Problem{Batch: 16, NumHeads: 32, NumKVHeads: 8, SeqQ: 130, SeqKV: 130, HeadDim: 64, Causal: true}, SBHD},
		// The largest head.
		{"d256", rotate(0), attention.Problem{Batch: 2, NumHeads: 4, SeqQ: 700, SeqKV: 900, HeadDim: 256}, Padded},
		{"d192-causal", rotate(1), attention.Problem{Batch: 2, NumHeads: 4, SeqQ: 900, SeqKV: 700, HeadDim: 192, Causal: true}, FusedQKV},
	} {
		t.add("large", c.what, Case{Problem: c.p, Q: c.l, K: c.l, V: c.l, O: c.l, LSE: c.l}, c.types...)
	}
}

// String describes the case for messages.
func (c *Case) String() string {
	s := fmt.Sprintf("%v scale=%g input=%v layouts q=%v k=%v v=%v o=%v lse=%v",
		c.Problem, c.Problem.EffectiveScale(), c.Input, c.Q, c.K, c.V, c.O, c.lseName())
	if !c.Problem.Plain() {
		s += fmt.Sprintf(" features=%v", c.Features)
	}
	if c.Lengths != nil {
		some, more := c.Lengths, ""
		if len(some) > 20 {
			some, more = some[:20], "..."
		}
		s += fmt.Sprintf(" lengths=%v%s slack=%d", some, more, c.Slack)
	}
	if c.Problem.KeyMask || c.HidingBias {
		s += fmt.Sprintf(" mask=%v hiding-bias=%v", c.Mask, c.HidingBias)
	}
	if c.Sizes != (Sizes{}) || c.Outliers {
		s += fmt.Sprintf(" sizes=%+v outliers=%v", c.Sizes, c.Outliers)
	}
	if c.Sample != 0 {
		s += fmt.Sprintf(" sample=%.3g", c.Sample)
	}
	return s
}

// BackwardString is String with what only the backward pass has.
func (c *Case) BackwardString() string {
	return fmt.Sprintf("%v do=%v dlse=%v", c, c.DO, c.DLSE)
}

func (c *Case) lseName() string {
	if c.NoLSE {
		return "none"
	}
	return c.LSE.String()
}
