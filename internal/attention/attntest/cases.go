// Package attntest has the cases of attention's suite: calls of both passes by name, which
// flashvk selftest and the tests of package attention run. TestMistakes plants mistakes in results that
// the cases must find.
package attntest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/cover"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Case is a call. Copies of it, on other paths and with other configurations, compute Want once.
type Case struct {
	Name string // unique: group/what/dtype
	call.Attention
	want *memo
}

// A memo has the results that passes want, once computed.
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

// words are the sizes of heads that the names in the table stand for, for each set: usual; no
// multiple of 16, for edges of tiles and layouts; somewhat wider; wide, beside mixed layouts;
// narrow, for features and masks, each choice of which is another kernel; and, beside all features
// at once, of Q and K ($all) and of V ($values).
var words = [...][]string{
	{"$usual", "24", "$odd", "24", "$wider", "24", "$wide", "24", "$narrow", "8", "$all", "16", "$values", "24"},
	{"$usual", "64", "$odd", "40", "$wider", "48", "$wide", "128", "$narrow", "32", "$all", "40", "$values", "72"},
}

// Words of both sets. Lengths are 0 and 1 at the start, between and at the end, more rows than keys and
// the reverse; one is longer than a tile.
const (
	packed = "[[0,3],[1,1],[33,70],[5,0],[0,0],[130,20],[17,17],[1,100],[64,64],[2,0]]"
	seeded = `"Seeded":true,"Seed":11400714819323198485,"Offset":4294967293`
)

//go:embed cases.txt
var table string

// Cases returns the cases of a set for a pass, in the order of cases.txt. The backward pass has the
// cases of the forward pass that have an LSE, with a normal dO, and some cases of its own.
func Cases(set Set, pass kit.Pass) (list []*Case) {
	text := strings.NewReplacer(append(slices.Clone(words[set]), "$packed", packed, "$seeded", seeded)...)
	for _, line := range call.Lines(text.Replace(table)) {
		group, of, name := line.Section[0], line.Section[1], line.Words[0]
		if of == "full" && set == Short || of == "backward" && pass == kit.Forward || of == "forward" && pass == kit.Backward {
			continue
		}
		for _, t := range dtype.All() {
			if line.Words[1] == "all" || slices.Contains(strings.Split(line.Words[1], ","), t.Short()) {
				c := newCase(fmt.Sprintf("%s/%s/%v", group, name, t), t, line.Fields)
				if c.Backward = pass == kit.Backward; !c.NoLSE || !c.Backward {
					list = append(list, c)
				}
			}
		}
	}
	return list
}

func newCase(name string, t dtype.DType, fields string) *Case {
	c := &Case{Name: name, want: new(memo)}
	p := &c.Problem
	p.Batch, p.NumHeads, p.DType = 1, 1, t
	if err := json.Unmarshal([]byte("{"+fields+"}"), &c.Attention); err != nil {
		panic(fmt.Sprintf("attntest: %s: %v", name, err))
	}
	if p.NumKVHeads == 0 {
		p.NumKVHeads = p.NumHeads
	}
	if p.Bias.DType != dtype.Float32 {
		p.Bias.DType = t
	}
	if p.Varlen.On = c.Lengths != nil; p.Varlen.On {
		c.Pack()
	}
	if c.Kind == call.HugeKind {
		p.Scale = call.HugeScale(p)
	}
	hash := fnv.New64a()
	hash.Write([]byte(name))
	c.Seed = hash.Sum64()
	return c
}

// Several is a number of features. Cases with at least that many at once find all that cases of
// single features find, as TestMistakes checks: where each choice takes long to compile, cases with
// fewer may be left out. Every feature comes alone in every dtype, then in pairs.
const Several = 3

// KernelStandIns returns cases that stand for all in tests of tiles whose kernels take long to
// compile. Every choice of a kernel that occurs in some case occurs in one of them, and all cases
// of the same kernel are among them. StandIns covers every two choices together, on the tiles of
// the tuning table.
func KernelStandIns(cases []*Case) []*Case {
	return cover.Each(cases, func(c *Case) []any {
		// A kernel has one constant for the alignment of all its tensors; StandIns covers the
		// alignment of each tensor.
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
