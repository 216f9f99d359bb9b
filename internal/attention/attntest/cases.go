// Package attntest has the cases of attention's suite: calls of both passes by name, which
// flashvk selftest and the tests of package attention run. TestMistakes plants mistakes in results that
// the cases must find.
package attntest

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Case is a call. Copies of it, on other paths and with other configurations, compute Want once.
type Case struct {
	Name string // unique: group/what/dtype
	call.Attention
	want *memo
}

// A memo has what passes want, once computed.
type memo [2]struct {
	sync.Once
	call.Outputs
}

// Want implements call.Call. X has to be what call.Inputs returns, unless there is a Sample.
func (c *Case) Want(x call.Values, pass kit.Pass) call.Outputs {
	if c.Sample > 0 || c.want == nil {
		return c.Attention.Want(x, pass)
	}
	w := &c.want[pass]
	w.Do(func() { w.Outputs = c.Attention.Want(x, pass) })
	return w.Outputs
}

// On returns a copy with other options.
func (c *Case) On(o attention.Options) *Case {
	on := *c
	on.Impl, on.Config, on.BackwardConfig, on.DecodeConfig = o.Impl, o.Config, o.BackwardConfig, o.DecodeConfig
	return &on
}

// A Set is a choice of cases by cost.
type Set uint8

const (
	// Short is about 1.2e9 operations for all dtypes together, the largest case 0.1e9: seconds on a
	// software driver that does 1 GFLOP/s. Heads are narrow, as such a driver takes seconds to compile
	// a kernel, and the longer the wider they are.
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

// Cases returns the cases of a set for a pass, in the order of the table.
//
// The table is not a product of everything with everything. Each dimension varies on its own beside
// small, odd values of the others:
//
//   - shapes, tile edges, head dims, layouts and extreme inputs come in every dtype, since each dtype
//     is a kernel of its own on each path;
//   - masks, GQA ratios and scales come in float16, which every path takes, and rotate through the
//     others: the index arithmetic is the same source for all;
//   - features come alone in every dtype, and in pairs and all together (features.go);
//   - the two 1023x1024 shapes run causal or not, not both, in each dtype.
//
// The backward pass has all of them that have an LSE, with a normal dO, then what only this pass has.
//
// Left out: NaN in keys that some row sees and another does not; strides of 0 or below (not promised);
// head_dim that is no multiple of 8 (refused); NaN or Inf in Q, K, V (an implementation may do anything
// with them); K and V beyond 2^31 elements (no test machine has the time).
func Cases(set Set, pass kit.Pass) []*Case {
	t := table{dims: set.HeadDims()}
	for _, group := range []func(){
		t.shapes, t.headDims, t.masks, t.groups, t.decode, t.layouts, t.extremes,
		t.windows, t.scores, t.keyMasks, t.sinks, t.varlen, t.valueDims, t.dropouts, t.everything,
	} {
		group()
	}
	if set == Full {
		t.hiddenKeysAsFound()
		t.large()
	}
	if pass == kit.Backward {
		t.cases = slices.DeleteFunc(t.cases, func(c *Case) bool { return c.NoLSE })
		t.gradients()
		for _, c := range t.cases {
			c.Backward = true
		}
	}
	return t.cases
}

// A table collects cases.
type table struct {
	cases []*Case
	dims  HeadDims
}

type (
	problem = attention.Problem
	calls   = call.Attention
)

// add appends a case named group/what/dtype, for each of the dtypes. The zero
// values of Problem stand for 1 (batch, heads), num_heads (num_kv_heads), and
// the usual head_dim.
func (t *table) add(group, what string, c calls, types ...dtype.DType) {
	p := &c.Problem
	if c.Lengths != nil {
		p.Varlen.On = true
		c.Pack()
	}
	for _, s := range []*int{&p.Batch, &p.NumHeads} {
		*s = max(*s, 1)
	}
	if p.NumKVHeads == 0 {
		p.NumKVHeads = p.NumHeads
	}
	if p.HeadDim == 0 {
		p.HeadDim = t.dims.Usual
	}
	for _, dt := range types {
		c := Case{Attention: c, Name: fmt.Sprintf("%s/%s/%v", group, what, dt), want: new(memo)}
		if p := &c.Problem; p.Bias.DType != dtype.Float32 {
			p.Bias.DType = dt // that of the problem
		}
		if c.DType = dt; c.Kind == call.HugeKind {
			c.Scale = call.HugeScale(&c.Problem)
		}
		hash := fnv.New64a()
		hash.Write([]byte(c.Name))
		c.Seed = hash.Sum64()
		t.cases = append(t.cases, &c)
	}
}

// laid returns a call with letters of layouts for q, k, v, o, lse and the tensors of features.
func laid(p problem, layout string) calls { return calls{Problem: p, Data: call.Data{Layout: layout}} }

// layouts are the letters with the words of names.
const layouts = call.Packed + call.BSHD + call.SBHD + call.FusedQKV + call.Cache + call.Padded + call.Odd + call.OddOffset

var layoutNames = []string{"packed", "bshd", "sbhd", "fused-qkv", "cache", "padded", "odd", "odd-offset"}

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

// shapes: the lengths of FlashAttention's tests; then one below, at, and one above each tile size a
// kernel may use, crosswise, so that a row tail meets a key head and the reverse.
func (t *table) shapes() {
	for _, s := range [][2]int{
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
			t.add("shape", fmt.Sprintf("%dx%d/%s", s[0], s[1], mask(causal)), calls{Problem: problem{SeqQ: s[0], SeqKV: s[1], NumHeads: 2, Causal: causal}}, dtype.All()...)
		}
	}
	// Long enough for many tiles each way, one off on one side.
	for i, dt := range dtype.All() {
		for j, s := range [][2]int{{1023, 1024}, {1024, 1023}} {
			causal := (i+j)%2 == 1
			t.add("shape", fmt.Sprintf("%dx%d/%s", s[0], s[1], mask(causal)), calls{Problem: problem{SeqQ: s[0], SeqKV: s[1], Causal: causal}}, dt)
		}
	}
	for _, edge := range []int{16, 32, 64, 128} {
		for i, s := range [][2]int{{edge - 1, edge + 1}, {edge, edge}, {edge + 1, edge - 1}, {1, edge + 1}} {
			for j, dt := range dtype.All() {
				p := problem{SeqQ: s[0], SeqKV: s[1], HeadDim: t.dims.Odd, Causal: (i+j)%2 == 0}
				t.add("edge", fmt.Sprintf("%dx%d/%s", s[0], s[1], mask(p.Causal)), calls{Problem: p}, dt)
			}
		}
	}
}

// headDims: every size that kernels are tuned for, and sizes that fill no power of two and no 16- or
// 32-wide matrix. Two heads, so that a store that runs over head_dim hits a neighbour.
func (t *table) headDims() {
	for i, d := range []int{8, 24, 40, 64, 72, 96, 128, 160, 192, 256} {
		for j, dt := range dtype.All() {
			p := problem{NumHeads: 2, SeqQ: 70, SeqKV: 90, HeadDim: d, Causal: (i+j)%2 == 1}
			t.add("head-dim", fmt.Sprintf("%d/%s", d, mask(p.Causal)), calls{Problem: p}, dt)
		}
	}
}

// masks: both alignments, wide and tall, within one tile and over several. Scales: far from the default,
// tiny (P nearly uniform), and negative (the largest product is then the smallest score).
func (t *table) masks() {
	for i, s := range [][2]int{{2, 5}, {5, 2}, {65, 130}, {130, 65}, {100, 100}} {
		for _, align := range []attention.Align{attention.BottomRight, attention.TopLeft} {
			p := problem{SeqQ: s[0], SeqKV: s[1], HeadDim: t.dims.Feature, Causal: true, CausalAlign: align}
			t.add("mask", fmt.Sprintf("%dx%d/%v", s[0], s[1], align), calls{Problem: p}, rotate(i)...)
		}
	}
	for i, scale := range []float64{1e-3, 0.3, 1, -0.3} {
		t.add("scale", fmt.Sprint(scale), calls{Problem: problem{NumHeads: 2, SeqQ: 50, SeqKV: 77, Scale: scale, Causal: i%2 == 1}}, rotate(i)...)
	}
}

// groups: ratios of query to key heads 1, 2, 3, 8 and all. There are two batches, so that a wrong
// group reads the keys of another batch or head.
func (t *table) groups() {
	for i, h := range [][2]int{{4, 4}, {4, 2}, {6, 2}, {8, 1}, {16, 2}, {5, 1}} {
		p := problem{Batch: 2, NumHeads: h[0], NumKVHeads: h[1], SeqQ: 33, SeqKV: 47, Causal: i%2 == 1}
		t.add("heads", fmt.Sprintf("%dto%d", h[0], h[1]), laid(p, "bbbbdp"), rotate(i)...)
		t.add("heads", fmt.Sprintf("%dto%d/packed", h[0], h[1]), calls{Problem: p}, dtype.Float16)
	}
}

// decode: one query for each head, with heads in groups. A kernel may take the heads of a group as
// rows of one matrix, and then walks over heads of Q, O and LSE in any layout. Aligned to the top
// left the row sees one key.
func (t *table) decode() {
	for i, layout := range []string{"pbcppp", "bbccdp", "obcdop"} {
		p := problem{Batch: 2, NumHeads: 12, NumKVHeads: 4, SeqQ: 1, SeqKV: 203, HeadDim: t.dims.Odd}
		for _, m := range []string{"dense", "causal", "top-left"} {
			if p.Causal = m != "dense"; m == "top-left" {
				p.CausalAlign = attention.TopLeft
			}
			t.add("decode", fmt.Sprintf("q-%s/%s", []string{"packed", "bshd", "odd"}[i], m), laid(p, layout), rotate(i)...)
		}
	}
	p := problem{NumHeads: 9, NumKVHeads: 1, SeqQ: 1, SeqKV: 130, HeadDim: t.dims.Odd}
	t.add("decode", "one-group", calls{Problem: p}, dtype.All()...)
	t.add("decode", "no-lse", calls{Problem: p, NoLSE: true}, dtype.Float16)
}

// layouts: each for all tensors together, then mixed so that no two tensors
// share strides, then without LSE.
func (t *table) layouts() {
	p := problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 37, SeqKV: 53, HeadDim: t.dims.Odd}
	for i, name := range layoutNames {
		p.Causal = i%2 == 1
		t.add("layout", name, laid(p, strings.Repeat(layouts[i:i+1], 5)+"p"), dtype.All()...)
	}
	p.Causal, p.HeadDim = false, t.dims.Wide
	t.add("layout", "mixed", laid(p, "bcdsop"), dtype.All()...)
	t.add("layout", "mixed-odd", laid(p, "oxooxp"), dtype.All()...)
	t.add("layout", "odd-keys", laid(p, "popbpp"), dtype.All()...)
	t.add("layout", "odd-values", laid(p, "ppoppp"), dtype.All()...)
	c := laid(p, "pppdpp")
	c.NoLSE = true
	t.add("layout", "no-lse", c, dtype.All()...)
}

// extremes: inputs at which arithmetic breaks first. 64 to 520 keys, so that
// several tiles of any size follow each other.
func (t *table) extremes() {
	for _, e := range []struct {
		what, kind string
		seqKV      int
		causal     bool
		scale      float64
	}{
		{"big-logits", call.BigLogitsKind, 150, false, 0},
		{"big-logits-causal", call.BigLogitsKind, 150, true, 0}, // rows whose every score is -1e4
		{"big-logits-negative-scale", call.BigLogitsKind, 150, false, -1 / math.Sqrt(float64(t.dims.Usual))},
		{"huge", call.HugeKind, 150, false, 0},
		{"equal-keys", call.EqualKeysKind, 150, false, 0},
		{"one-hot", call.OneHotKind, 64, false, 0},
		{"one-hot-long", call.OneHotKind, 150, true, 0},
		{"rising", call.RisingKind, 300, false, 0},
		{"rising-long", call.RisingKind, 700, false, 0}, // beyond the range of weights in bfloat16
		{"rising-causal", call.RisingKind, 150, true, 0},
		{"creeping", call.CreepingKind, 520, false, 0},
		{"falling", call.FallingKind, 300, false, 0},
		{"uneven", call.UnevenKind, 150, false, 0},
		{"zero", call.AllZeroKind, 100, true, 0},
	} {
		p := problem{NumHeads: 4, NumKVHeads: 2, SeqQ: 96, SeqKV: e.seqKV, Causal: e.causal, Scale: e.scale}
		if e.seqKV > 200 {
			p.NumHeads, p.SeqQ = 2, 48
		}
		t.add("extreme", e.what, calls{Problem: p, Data: call.Data{Kind: e.kind}}, dtype.All()...)
	}
	// All rows but one see no key: in most workgroups the loop over keys never runs.
	t.add("extreme", "almost-nothing-seen", laid(problem{SeqQ: 200, SeqKV: 1, Causal: true, NumHeads: 3}, "pppddp"), dtype.All()...)
}

// large: many workgroups at once, many tiles in a row.
func (t *table) large() {
	for _, c := range []struct {
		what   string
		types  []dtype.DType
		p      problem
		letter string
	}{
		// A decoder layer, grouped heads.
		{"gqa-d128", dtype.All(), problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 1024, SeqKV: 1024, HeadDim: 128, Causal: true}, call.Packed},
		{"gqa-d128-bshd", rotate(1), problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 1000, SeqKV: 1100, HeadDim: 128, Causal: true}, call.BSHD},
		// Long rows, one off.
		{"long-d64", dtype.All(), problem{NumHeads: 2, SeqQ: 4095, SeqKV: 4097, HeadDim: 64}, call.Packed},
		{"long-d64-causal", rotate(1), problem{NumHeads: 2, SeqQ: 4097, SeqKV: 4095, HeadDim: 64, Causal: true}, call.BSHD},
		// Very many keys for few rows, and the reverse.
		{"many-keys", rotate(0), problem{Batch: 2, NumHeads: 4, SeqQ: 5, SeqKV: 30011, HeadDim: 128, Causal: true}, call.Cache},
		{"many-rows", rotate(1), problem{NumHeads: 4, NumKVHeads: 1, SeqQ: 20011, SeqKV: 70, HeadDim: 64}, call.Odd},
		// Many small heads: more workgroups than the device holds at once.
		{"many-heads", dtype.All(), problem{Batch: 16, NumHeads: 32, NumKVHeads: 8, SeqQ: 130, SeqKV: 130, HeadDim: 64, Causal: true}, call.SBHD},
		// The largest head.
		{"d256", rotate(0), problem{Batch: 2, NumHeads: 4, SeqQ: 700, SeqKV: 900, HeadDim: 256}, call.Padded},
		{"d192-causal", rotate(1), problem{Batch: 2, NumHeads: 4, SeqQ: 900, SeqKV: 700, HeadDim: 192, Causal: true}, call.FusedQKV},
	} {
		t.add("large", c.what, laid(c.p, strings.Repeat(c.letter, 5)+"p"), c.types...)
	}
}
