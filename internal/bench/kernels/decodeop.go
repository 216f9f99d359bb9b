package kernels

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A decodeOp is a call of attention.Decode, or of the calls around it, which are in decodestep.go.
type decodeOp struct {
	p      attention.DecodeProblem
	part   decodePart
	steps  int  // steps of stepPart in a call; 0 is one
	file   bool // the tensors are from a file, and its caches are outputs
	tables decodeTables
	keys   string // the lengths as --keys has them
	heads  bool   // the cache has heads before keys
	scaled bool   // heads of a cache of e4m3 have scales
	config *attention.DecodeConfig
	tuning *kit.Tuning
	state  *decodeState
}

// decodeTables are the tensors of integers; nil if the problem has none.
type decodeTables struct{ lens, blocks, rows, pad []int32 }

// decodeState is the State of calls that run one after the other. Recording the first call makes
// it. An op shares it with its copies.
type decodeState struct{ t vk.Tensor }

// Close frees what Record made.
func (o *decodeOp) Close() {
	o.state.t.Close()
	o.state.t = vk.Tensor{}
}

// Name implements bench.Op.
func (o *decodeOp) Name() string { return "decode" }

// Describe implements bench.Op.
func (o *decodeOp) Describe() string {
	p := &o.p
	var b strings.Builder
	fmt.Fprintf(&b, "%v: batch %d, heads %d, kv-heads %d, keys %s, queries %d, headdim %d", p.DType, p.Batch, p.NumHeads, p.NumKVHeads, o.keys, p.SeqQ, p.HeadDim)
	if p.PageSize > 0 {
		fmt.Fprintf(&b, ", pages of %d", p.PageSize)
	}
	if p.Cache != attention.CacheSame {
		fmt.Fprintf(&b, ", a cache of %v", p.Cache)
	}
	if o.heads {
		b.WriteString(", heads before keys")
	}
	if !p.Causal {
		b.WriteString(", not causal")
	}
	if p.Scale != 0 {
		fmt.Fprintf(&b, ", scale %g", p.Scale)
	}
	for _, f := range p.FeatureKeys() {
		fmt.Fprintf(&b, ", %s", f)
	}
	b.WriteString(o.describePart())
	return b.String()
}

// layout names the order of the axes of the cache.
func (o *decodeOp) layout() string {
	if o.heads {
		return layoutHND
	}
	return layoutNHD
}

// Keys implements bench.Op.
func (o *decodeOp) Keys() []bench.Key {
	p := &o.p
	keys := any(o.keys)
	if len(o.tables.lens) > 0 && slices.Max(o.tables.lens) == slices.Min(o.tables.lens) {
		keys = int(o.tables.lens[0])
	}
	if o.part == prefillPart {
		keys = p.SeqKV
	}
	return []bench.Key{
		{Name: "part", Value: string(o.part)}, {Name: "steps", Value: max(o.steps, 1)},
		{Name: "dtype", Value: p.DType.String()}, {Name: "batch", Value: p.Batch}, {Name: "heads", Value: p.NumHeads}, {Name: "kv_heads", Value: p.NumKVHeads},
		{Name: "queries", Value: p.SeqQ}, {Name: "keys", Value: keys}, {Name: "head_dim", Value: p.HeadDim}, {Name: "value_dim", Value: p.ValueHeadDim()},
		{Name: "cache_dtype", Value: p.Cache.String()}, {Name: "page_size", Value: p.PageSize}, {Name: "layout", Value: o.layout()}, {Name: "causal", Value: p.Causal}, {Name: "scale", Value: p.Scale},
		{Name: "window", Value: p.Window.String()}, {Name: "softcap", Value: p.Softcap}, {Name: "alibi", Value: p.ALiBi.String()}, {Name: "sinks", Value: p.Sinks},
	}
}

// Cost implements bench.Op.
func (o *decodeOp) Cost(bench.Pass) (flops, bytes float64) {
	for lens := range o.each() {
		flops, bytes = flops+o.p.FLOPsOf(lens), bytes+o.p.BytesOf(lens)
	}
	switch o.part {
	case stepPart:
		bytes += float64(max(o.steps, 1)) * o.appendBytes()
	case appendPart:
		flops, bytes = 0, o.appendBytes()
	}
	return flops, bytes
}

// Amounts says what else reports count: tokens, one for each query.
func (o *decodeOp) Amounts() []bench.Amount {
	read := 0.0
	for lens := range o.each() {
		read += o.p.CacheBytesOf(lens)
	}
	if o.part == appendPart {
		read = o.appendBytes()
	}
	return []bench.Amount{
		{Name: "tokens", Key: "token", Unit: "token", N: float64(o.p.Batch * o.p.SeqQ * max(o.steps, 1))},
		{Name: "K and V", Key: "kv_byte", Unit: "B", N: read},
	}
}

// cacheShapes returns the shapes of K and V in the memory of the cache.
func (o *decodeOp) cacheShapes() (k, v []int) { return o.memory(o.p.KShape()), o.memory(o.p.VShape()) }

// Tensors implements bench.Op.
func (o *decodeOp) Tensors() []bench.OpTensor {
	p := &o.p
	cache := call.Input
	if o.file && o.part == stepPart || o.part == appendPart {
		cache = call.Update
	}
	list := slices.Concat([]bench.OpTensor{{Name: "q", DType: p.DType, Shape: p.QShape()}}, o.cacheTensors(cache), []bench.OpTensor{
		{Name: "seq_lens", DType: dtype.Int32, Shape: p.SeqLensShape(), Ints: o.tables.lens, Most: p.SeqKV},
		{Name: "o", DType: p.DType, Shape: p.OShape(), Role: call.Output},
		{Name: "lse", DType: dtype.Float32, Shape: p.LSEShape(), Role: call.Output},
	})
	if p.PageSize > 0 {
		list = append(list, bench.OpTensor{Name: "block_table", DType: dtype.Int32, Shape: p.BlockTableShape(), Ints: o.tables.blocks, Free: true})
	}
	if p.CacheRows > 0 {
		list = append(list, bench.OpTensor{Name: "cache_batch_idx", DType: dtype.Int32, Shape: p.SeqLensShape(), Ints: o.tables.rows, Most: p.CacheRows - 1})
	}
	if p.LeftPad {
		list = append(list, bench.OpTensor{Name: "left_pad", DType: dtype.Int32, Shape: p.SeqLensShape(), Ints: o.tables.pad, Most: p.SeqKV})
	}
	if p.Tree {
		list = append(list, bench.OpTensor{Name: "tree_mask", DType: dtype.Int32, Shape: p.TreeMaskShape(), Free: true})
	}
	if p.Bias.On {
		list = append(list, bench.OpTensor{Name: "bias", DType: p.Bias.DType, Shape: p.BiasShape()})
	}
	if p.ALiBi != attention.ALiBiOff {
		list = append(list, bench.OpTensor{Name: "alibi_slopes", Shape: p.SlopesShape(), Values: func() []float32 { return bench.ALiBiSlopes(p.Problem) }})
	}
	if p.Sinks {
		list = append(list, bench.OpTensor{Name: "sinks", Shape: p.SinksShape()})
	}
	return o.partTensors(list)
}

func (o *decodeOp) options(impl string) (attention.Options, error) {
	i, err := attention.ParseImpl(impl)
	return attention.Options{Impl: i, DecodeConfig: o.config, Tuning: o.tuning}, err
}

func (o *decodeOp) plan(caps *vk.Caps, impl string) (attention.Plan, error) {
	opt, err := o.options(impl)
	if err != nil {
		return attention.Plan{}, err
	}
	if o.part == stepPart {
		return attention.ChooseStep(caps, o.append(), opt)
	}
	return attention.ChooseDecode(caps, o.p, opt)
}

// Record implements bench.Op.
func (o *decodeOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, _ bench.Pass) error {
	opt, err := o.options(impl)
	if err != nil {
		return err
	}
	opt.Workspace = workspace
	decode, err := o.tensors(c, t)
	if err != nil {
		return err
	}
	if o.part == readPart {
		return attention.Decode(c, decode, o.p, opt)
	}
	return o.recordPart(c, t, decode, opt)
}

// tensors returns those of Decode.
func (o *decodeOp) tensors(c *vk.Cmd, t map[string]vk.Tensor) (attention.DecodeTensors, error) {
	if o.state.t.IsZero() {
		state, err := c.Device().NewTensor("state", dtype.Int32, o.p.StateShape()...)
		if err != nil {
			return attention.DecodeTensors{}, err
		}
		o.state.t = state
		if err := state.Zero(context.Background()); err != nil {
			return attention.DecodeTensors{}, err
		}
	}
	k, v, kScale, vScale := t["k_cache"], t["v_cache"], t["k_scale"], t["v_scale"]
	for _, x := range []*vk.Tensor{&k, &v, &kScale, &vScale} {
		if !o.heads && len(x.Shape) == 4 {
			*x = x.Permute(0, 2, 1, 3)
		}
	}
	return attention.DecodeTensors{
		Q: t["q"], K: k, V: v, KScale: kScale, VScale: vScale, O: t["o"], LSE: t["lse"],
		SeqLens: t["seq_lens"], BlockTable: t["block_table"], CacheBatchIdx: t["cache_batch_idx"], LeftPad: t["left_pad"], TreeMask: t["tree_mask"],
		Bias: t["bias"], ALiBiSlopes: t["alibi_slopes"], Sinks: t["sinks"], State: o.state.t,
	}, nil
}

// decodeOperations bounds the operations of a reference: some seconds on a few cores.
const decodeOperations = 2e9

// Reference implements bench.Op. For large problems it has sampled rows.
func (o *decodeOp) Reference(t map[string][]float32, _ bench.Pass) (bench.Reference, error) {
	p := &o.p
	in := ref.DecodeInputs[float32]{
		Q: t["q"], Bias: t["bias"], ALiBiSlopes: t["alibi_slopes"], Sinks: t["sinks"],
		SeqLens: o.tables.lens, BlockTable: o.tables.blocks, CacheBatchIdx: o.tables.rows, LeftPad: o.tables.pad, KeysFirst: !o.heads,
	}
	k, v := o.appended(&in, t)
	if o.part == appendPart {
		return o.caches(&in, k, v), nil
	}
	in.K, in.V = o.values(k), o.values(v)
	last := slices.Clone(o.tables.lens)
	for lens := range o.each() {
		copy(last, lens)
	}
	in.SeqLens = last
	heads, err := ref.Decode(in, *p, decodeOperations)
	if err != nil {
		return nil, err
	}
	dv := p.ValueHeadDim()
	var list, lse bench.Expectations
	for _, h := range heads {
		x := bench.Expected{Name: "o", Want: h.O, Limit: h.Bound.O}
		y := bench.Expected{Name: "lse", Want: h.LSE, Limit: h.Bound.LSE}
		for _, r := range h.Rows {
			at := (r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row
			y.At = append(y.At, at)
			for e := range dv {
				x.At = append(x.At, at*dv+e)
			}
		}
		list, lse = append(list, x), append(lse, y)
	}
	return append(list, lse...), nil
}

// newDecodeOp returns the op of a problem whose sequences have these numbers of keys, with steps
// that append a key for each query. The pages of sequences are in a random order; their number and
// the capacity follow from the keys.
func newDecodeOp(p attention.DecodeProblem, keys keyCounts, heads bool, part decodePart, steps int) (*decodeOp, error) {
	o := &decodeOp{p: p, keys: keys.text, heads: heads, part: part, steps: steps, scaled: p.Cache == attention.CacheE4M3, state: &decodeState{}}
	o.p.SeqKV, o.p.PageSize = 1, 0
	if err := o.p.Validate(); err != nil { // before the sizes are used
		return o, err
	}
	if p.Batch > maxPacked {
		return o, fmt.Errorf("--batch %d is more than %d sequences", p.Batch, maxPacked)
	}
	lens, most := keys.lens(p.Batch), 1
	if part != readPart {
		o.p.NewKeys = p.SeqQ
	}
	for i, n := range lens {
		o.tables.lens = append(o.tables.lens, int32(n))
		lens[i] += o.p.NewKeys * steps
		most = max(most, lens[i])
	}
	o.p.SeqKV, o.p.PageSize = most, p.PageSize
	if p.PageSize > 0 {
		o.p.SeqKV, o.p.Pages = (most+p.PageSize-1)/p.PageSize*p.PageSize, 1
	}
	if err := o.p.Validate(); err != nil {
		return o, err
	}
	if p.PageSize == 0 {
		return o, nil
	}
	o.p.Pages = 0
	for _, n := range lens {
		o.p.Pages += (n + p.PageSize - 1) / p.PageSize
	}
	pages := rand.New(rand.NewPCG(1, 1)).Perm(max(o.p.Pages, 1))
	o.p.Pages = len(pages)
	each := o.p.SeqKV / p.PageSize
	o.tables.blocks = make([]int32, p.Batch*each)
	for b, n := range lens {
		for i := range (n + p.PageSize - 1) / p.PageSize {
			o.tables.blocks[b*each+i], pages = int32(pages[0]), pages[1:]
		}
	}
	return o, o.p.Validate()
}

// keyCounts are the numbers of keys of --keys.
type keyCounts struct {
	text        string
	list        []int // the number of each sequence in turn; the list repeats
	first, last int   // instead of a list: equal steps from first to last, in random order
}

// parseKeys reads N or FIRST..LAST.
func parseKeys(text string) (k keyCounts, err error) {
	k.text = text
	count := func(word string) (n int) {
		if err == nil {
			n, err = ParseInt(word)
		}
		if err == nil && (n < 0 || n > math.MaxInt32/2) {
			err = fmt.Errorf("not from 0 to %d", math.MaxInt32/2)
		}
		return n
	}
	if first, last, ok := strings.Cut(text, ".."); ok {
		k.first, k.last = count(first), count(last)
		if err == nil && k.last < k.first {
			err = fmt.Errorf("not a range: %d is less than %d", k.last, k.first)
		}
		return k, err
	}
	k.list = []int{count(text)}
	return k, err
}

// sameKeys is --keys N.
func sameKeys(n int) keyCounts { return keyCounts{text: fmt.Sprint(n), list: []int{n}} }

// lens returns the numbers of keys of a batch.
func (k *keyCounts) lens(batch int) []int {
	lens := make([]int, batch)
	for b := range lens {
		if len(k.list) > 0 {
			lens[b] = k.list[b%len(k.list)]
		} else {
			lens[b] = k.first + (k.last-k.first)*b/max(batch-1, 1)
		}
	}
	if len(k.list) == 0 {
		rand.New(rand.NewPCG(2, 2)).Shuffle(batch, func(i, j int) { lens[i], lens[j] = lens[j], lens[i] })
	}
	return lens
}

// Use implements bench.Tuner.
func (o *decodeOp) Use(tuning *kit.Tuning) bench.Op {
	with := *o
	with.tuning = tuning
	return &with
}

// Tunables implements bench.Tuner. With --config only that is compared with what flashvk
// chooses.
func (o *decodeOp) Tunables(_ *vk.Caps, p bench.Pass) ([]bench.Tunable, error) {
	if o.part != readPart {
		return nil, fmt.Errorf("decode: --part %s has no configurations of its own", o.part)
	}
	choices := bench.ChoicesOf("decode", o, p, o.p, func(c attention.DecodeConfig) bench.Op {
		with := *o
		with.config = &c
		return &with
	})
	if all := choices.Candidates; o.config != nil {
		choices.Candidates = func(caps *vk.Caps, p attention.DecodeProblem, impl string) ([]attention.DecodeConfig, error) {
			list, err := all(caps, p, impl)
			if err != nil {
				return nil, err
			}
			list = list[:1]
			if o.config.Impl.String() == impl && *o.config != list[0] {
				list = append(list, *o.config)
			}
			return list, nil
		}
	}
	return []bench.Tunable{choices.Tunable()}, nil
}

// Note says what the dispatches of a call do.
func (o *decodeOp) Note(caps *vk.Caps, impl string, _ bench.Pass, list []bench.DispatchProfile) error {
	plan, err := o.plan(caps, impl)
	if err != nil {
		return err
	}
	step := 0 // of stepPart
	for i := range list {
		x := &list[i].Note
		switch {
		case o.appends(list[i].Kernel):
			x.Bytes = o.appendBytes()
			continue
		case !strings.HasPrefix(list[i].Kernel, "attention_decode"):
			continue
		}
		lens := slices.Clone(o.tables.lens)
		for b := range lens {
			lens[b] += int32(step * o.p.NewKeys)
		}
		step++
		x.FLOPs, x.Bytes = o.p.FLOPsOf(lens), o.p.BytesOf(lens)
		if plan.Decode.Append {
			x.Bytes += o.appendBytes()
		}
		x.Matrices, x.DType = plan.Decode.Impl == attention.CoopMat, o.p.DType
		x.Text = o.Describe()
	}
	return nil
}
