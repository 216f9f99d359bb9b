package trial

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk"
)

// decodeKernel draws calls of attention.Decode: decode_draw.go.
func decodeKernel() Kernel {
	return Kernel{Name: "decode", Weight: 3, New: func() Problem { return &decodeProblem{} }, Draw: drawDecode}
}

// decodeProblem is one of them.
type decodeProblem struct {
	attention.DecodeProblem
	Impl      attention.Impl
	Lens      []int // SeqLens
	KeysFirst bool  // in memory the axis of keys comes before that of heads
	NoLSE     bool
	Shared    bool // sequences may have pages in common
	Hiding    bool // the bias is -Inf for one key in eight
	Scales    cacheScales
	Config    *attention.DecodeConfig
	kernelData
}

// String implements Problem.
func (p *decodeProblem) String() string {
	s := fmt.Sprintf("%v %v lens=%v", p.Impl, p.DecodeProblem, p.Lens)
	if p.Config != nil {
		s += fmt.Sprintf(" (%v)", p.Config)
	}
	return s
}

func (p *decodeProblem) options() attention.Options {
	return attention.Options{Impl: p.Impl, DecodeConfig: p.Config}
}

// Supports implements Problem.
func (p *decodeProblem) Supports(caps *vk.Caps) error {
	_, err := attention.ChooseDecode(caps, p.DecodeProblem, p.options())
	return err
}

// inputs returns what a call reads.
func (p *decodeProblem) inputs() ref.DecodeInputs[float64] {
	in := p.lengths()
	p.drawTables(&in)
	p.drawNumbers(&in)
	return in
}

// lengths returns inputs with the lengths of sequences alone.
func (p *decodeProblem) lengths() ref.DecodeInputs[float64] {
	in := ref.DecodeInputs[float64]{KeysFirst: p.KeysFirst, SeqLens: make([]int32, p.Batch)}
	for b, n := range p.Lens {
		in.SeqLens[b] = int32(n)
	}
	return in
}

// drawNumbers draws what is not drawn yet.
func (p *decodeProblem) drawNumbers(in *ref.DecodeInputs[float64]) {
	in.Q = p.Numbers(0, p.DType, product(p.QShape()), call.OrOne(p.Magnitude))
	in.K = p.Numbers(1, p.DType, product(p.KShape()), call.OrOne(p.Second))
	in.V = p.Numbers(2, p.DType, product(p.VShape()), 1)
	if p.Cache != attention.CacheSame { // stored in 8 bits, from float32
		in.K, in.V = p.Numbers(1, dtype.Float32, len(in.K), min(call.OrOne(p.Second), 100)), p.Numbers(2, dtype.Float32, len(in.V), 1)
	}
	p.hideUnseen(in)
	if p.Bias.On {
		in.Bias = p.Normal(3, p.Bias.DType, product(p.BiasShape()), 1)
		rng := p.Rand(21)
		for i := range in.Bias {
			if p.Hiding && rng.IntN(8) == 0 {
				in.Bias[i] = math.Inf(-1)
			}
		}
	}
	if p.ALiBi != attention.ALiBiOff {
		in.ALiBiSlopes = p.Normal(4, dtype.Float32, product(p.SlopesShape()), 0.1)
	}
	if p.Sinks {
		in.Sinks = p.Normal(5, dtype.Float32, p.NumHeads, 2)
	}
}

// drawTables draws pages in random order, rows of the cache, hidden keys and trees. Entries of the
// block table that no key needs are invalid.
func (p *decodeProblem) drawTables(in *ref.DecodeInputs[float64]) {
	rng := p.Rand(20)
	if p.PageSize > 0 {
		pages, each, next := rng.Perm(p.Pages), p.SeqKV/p.PageSize, 0
		for b := range p.Batch {
			used := (p.Lens[b] + p.NewKeys + p.PageSize - 1) / p.PageSize
			for i := range each {
				entry := int32([]int64{-1, math.MaxInt32, math.MinInt32, int64(p.Pages)}[rng.IntN(4)])
				if i < used && p.Shared {
					entry = int32(pages[rng.IntN(p.Pages)])
				} else if i < used {
					entry = int32(pages[next%p.Pages])
					next++
				}
				in.BlockTable = append(in.BlockTable, entry)
			}
		}
	}
	if p.CacheRows > 0 {
		for b := range p.Batch {
			in.CacheBatchIdx = append(in.CacheBatchIdx, int32((b*7+int(p.Seed%64))%p.CacheRows))
		}
	}
	if p.LeftPad {
		for b := range p.Batch {
			in.LeftPad = append(in.LeftPad, int32(rng.IntN(p.Lens[b]+p.NewKeys+1)))
		}
	}
	if p.Tree {
		for range p.Batch * p.SeqQ {
			in.TreeMask = append(in.TreeMask, int32(rng.Uint32()), int32(rng.Uint32()))
		}
	}
}

// hideUnseen fills keys and values that no query sees with NaN: those after a sequence's last
// one, before its window and left of its padding, and pages of no sequence.
func (p *decodeProblem) hideUnseen(in *ref.DecodeInputs[float64]) {
	seen := make([]bool, product(p.KShape())/p.HeadDim)
	for b := range p.Batch {
		n := p.Lens[b] + p.NewKeys
		first, _ := p.MaskOf(p.SeqQ, n).Keys(0)
		if p.LeftPad {
			first = max(first, int(in.LeftPad[b]))
		}
		for j := first; j < n; j++ {
			for kv := range p.NumKVHeads {
				seen[in.At(&p.DecodeProblem, b, kv, j)] = true
			}
		}
	}
	for i, ok := range seen {
		for _, x := range [][]float64{in.K[i*p.HeadDim:][:p.HeadDim], in.V[i*p.ValueHeadDim():][:p.ValueHeadDim()]} {
			for e := range x {
				if !ok {
					x[e] = math.NaN()
				}
			}
		}
	}
}

// product returns the number of elements of a shape.
func product(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// memory returns the shape that a cache has in memory.
func (p *decodeProblem) memory(shape []int) []int {
	if p.KeysFirst {
		shape[1], shape[2] = shape[2], shape[1]
	}
	return shape
}

// tensors returns those of the call.
func (p *decodeProblem) tensors() ([]guard.Tensor, error) { return p.tensorsOf(p.inputs()) }

// tensorsOf returns those of a call that reads these numbers.
func (p *decodeProblem) tensorsOf(in ref.DecodeInputs[float64]) ([]guard.Tensor, error) {
	k := guard.Tensor{Name: "k", DType: p.CacheDType(), Shape: p.memory(p.KShape()), Values: in.K}
	v := guard.Tensor{Name: "v", DType: p.CacheDType(), Shape: p.memory(p.VShape()), Values: in.V}
	var scales []guard.Tensor
	if p.Cache != attention.CacheSame {
		for i, x := range []struct {
			t     *guard.Tensor
			to    *[]float64
			shape []int
			size  float64
		}{{&k, &in.K, p.KScaleShape(), min(call.OrOne(p.Second), 100)}, {&v, &in.V, p.VScaleShape(), 1}} {
			perHead := p.headScales(&p.DecodeProblem, p.Scales, i, x.size)
			c := quantise(&p.DecodeProblem, p.KeysFirst, *x.to, x.t.Shape[3], perHead)
			x.t.Values, *x.to = c.Stored, c.Values
			s := guard.Tensor{Name: x.t.Name + "_scale", DType: p.ScaleDType(), Shape: []int{len(perHead)}, Values: perHead}
			if p.Cache == attention.CacheQ8_0 {
				s.Shape, s.Values = p.memory(x.shape), c.Scales
			}
			x.t.Place, s.Place = p.cachePlaces(&p.DecodeProblem, i)
			if len(s.Values) > 0 {
				scales = append(scales, s)
			}
		}
	}
	heads, err := ref.Decode(in, p.DecodeProblem, 0)
	if err != nil {
		return nil, err
	}
	dv := p.ValueHeadDim()
	o := guard.Tensor{Name: "o", DType: p.DType, Shape: p.OShape(), Want: make([]float64, product(p.OShape())), Bounds: make([]float64, product(p.OShape()))}
	lse := guard.Tensor{Name: "lse", Shape: p.LSEShape(), Want: make([]float64, product(p.LSEShape())), Bounds: make([]float64, product(p.LSEShape()))}
	for _, h := range heads {
		for x, r := range h.Rows {
			at := (r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row
			copy(o.Want[at*dv:], h.O[x*dv:][:dv])
			for e := range dv {
				o.Bounds[at*dv+e] = h.Bound.O
			}
			lse.Want[at], lse.Bounds[at] = h.LSE[x], h.Bound.LSE
		}
	}
	ints := func(x []int32) (y []float64) {
		for _, n := range x {
			y = append(y, float64(n))
		}
		return y
	}
	state := make([]float64, product(p.StateShape()))
	list := []guard.Tensor{
		{Name: "q", DType: p.DType, Shape: p.QShape(), Values: in.Q},
		k,
		v,
		o,
		{Name: "seq_lens", DType: dtype.Int32, Shape: p.SeqLensShape(), Values: ints(in.SeqLens)},
		{Name: "state", DType: dtype.Int32, Shape: p.StateShape(), Values: state, Want: state},
	}
	for _, x := range []struct {
		on bool
		guard.Tensor
	}{
		{!p.NoLSE, lse},
		{p.PageSize > 0, guard.Tensor{Name: "block_table", DType: dtype.Int32, Shape: p.BlockTableShape(), Values: ints(in.BlockTable)}},
		{p.CacheRows > 0, guard.Tensor{Name: "cache_batch_idx", DType: dtype.Int32, Shape: p.SeqLensShape(), Values: ints(in.CacheBatchIdx)}},
		{p.LeftPad, guard.Tensor{Name: "left_pad", DType: dtype.Int32, Shape: p.SeqLensShape(), Values: ints(in.LeftPad)}},
		{p.Tree, guard.Tensor{Name: "tree_mask", DType: dtype.Int32, Shape: p.TreeMaskShape(), Values: ints(in.TreeMask)}},
		{p.Bias.On, guard.Tensor{Name: "bias", DType: p.Bias.DType, Shape: p.BiasShape(), Values: in.Bias}},
		{p.ALiBi != attention.ALiBiOff, guard.Tensor{Name: "alibi_slopes", Shape: p.SlopesShape(), Values: in.ALiBiSlopes}},
		{p.Sinks, guard.Tensor{Name: "sinks", Shape: p.SinksShape(), Values: in.Sinks}},
	} {
		if x.on {
			list = append(list, x.Tensor)
		}
	}
	return append(list, scales...), nil
}

// cache returns K, V and their scales of a call, with their axes in the order of the call.
func (p *decodeProblem) cache(t map[string]vk.Tensor) (k, v, kScale, vScale vk.Tensor) {
	list := []vk.Tensor{t["k"], t["v"], t["k_scale"], t["v_scale"]}
	for i, x := range list {
		if p.KeysFirst && len(x.Shape) == 4 {
			list[i] = x.Permute(0, 2, 1, 3)
		}
	}
	return list[0], list[1], list[2], list[3]
}

// Check implements Problem.
func (p *decodeProblem) Check(ctx context.Context, r *Runner) error {
	plan, err := attention.ChooseDecode(r.Device().Caps(), p.DecodeProblem, p.options())
	if err != nil {
		return err
	}
	tensors, err := p.tensors()
	if err != nil {
		return err
	}
	tensors = append(tensors, p.WorkspaceTensor(plan.Workspace(), 0)...)
	return p.check(ctx, r, "decode", tensors, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := p.options()
		opt.Workspace = t[call.WorkspaceName].Buffer
		return attention.Decode(c, p.decodeTensors(t), p.DecodeProblem, opt)
	})
}

// decodeTensors returns the tensors of Decode.
func (p *decodeProblem) decodeTensors(t map[string]vk.Tensor) attention.DecodeTensors {
	k, v, kScale, vScale := p.cache(t)
	return attention.DecodeTensors{
		Q: t["q"], K: k, V: v, KScale: kScale, VScale: vScale, O: t["o"], LSE: t["lse"], SeqLens: t["seq_lens"], BlockTable: t["block_table"],
		CacheBatchIdx: t["cache_batch_idx"], LeftPad: t["left_pad"], TreeMask: t["tree_mask"], Bias: t["bias"],
		ALiBiSlopes: t["alibi_slopes"], Sinks: t["sinks"], State: t["state"],
	}
}

// Smaller implements Problem.
func (p *decodeProblem) Smaller() (list []Problem) {
	add := func(change func(q *decodeProblem)) {
		q := *p
		q.Lens = slices.Clone(p.Lens)
		if p.Config != nil {
			config := *p.Config
			q.Config = &config
		}
		change(&q)
		q.tidy()
		if !reflect.DeepEqual(&q, p) && q.DecodeProblem.Validate() == nil {
			list = append(list, &q)
		}
	}
	add(func(q *decodeProblem) { q.Config = nil })
	for _, off := range []func(q *decodeProblem){
		func(q *decodeProblem) { q.PageSize, q.Pages = 0, 0 },
		func(q *decodeProblem) { q.CacheRows = 0 },
		func(q *decodeProblem) { q.LeftPad = false },
		func(q *decodeProblem) { q.Tree = false },
		func(q *decodeProblem) { q.Window = attention.Window{} },
		func(q *decodeProblem) { q.Softcap = 0 },
		func(q *decodeProblem) { q.ALiBi = attention.ALiBiOff },
		func(q *decodeProblem) { q.Bias = attention.Bias{} },
		func(q *decodeProblem) { q.Bias.Batch, q.Bias.Heads, q.Bias.Rows = false, false, false },
		func(q *decodeProblem) { q.Sinks = false },
		func(q *decodeProblem) { q.Causal = false },
		func(q *decodeProblem) { q.ValueDim = 0 },
		func(q *decodeProblem) { q.Cache, q.Scales = attention.CacheSame, noScales },
		func(q *decodeProblem) { q.Scales = noScales },
		func(q *decodeProblem) { q.Scale = 0 },
		func(q *decodeProblem) { q.NewKeys = 0 },
		func(q *decodeProblem) { q.KeysFirst, q.NoLSE, q.Shared, q.Hiding = false, false, false, false },
		func(q *decodeProblem) { q.Batch, q.Lens = 1, q.Lens[:1] },
		func(q *decodeProblem) { q.Batch, q.Lens = 1, q.Lens[len(q.Lens)-1:] },
		func(q *decodeProblem) { q.NumHeads = q.NumKVHeads },
		func(q *decodeProblem) { q.NumHeads, q.NumKVHeads = q.NumHeads/q.NumKVHeads, 1 },
		func(q *decodeProblem) { q.SeqQ = (q.SeqQ + 1) / 2 },
		func(q *decodeProblem) { q.HeadDim = (q.HeadDim/2 + 7) / 8 * 8 },
	} {
		add(off)
	}
	var lens []*int
	for b := range p.Lens {
		lens = append(lens, &p.Lens[b])
	}
	now := slices.Clone(p.Lens)
	halves(lens, func() {
		change := slices.Clone(p.Lens)
		copy(p.Lens, now)
		add(func(q *decodeProblem) { q.Lens = change })
		copy(p.Lens, change)
	})
	if p.Config != nil {
		add(func(q *decodeProblem) { q.Config.Groups = (q.Config.Groups + 1) / 2 })
	}
	p.smaller(func(d kernelData) { add(func(q *decodeProblem) { q.kernelData = d }) })
	return list
}

// tidy sets the fields that follow from the others: the capacity, and the pages that the keys need.
func (p *decodeProblem) tidy() {
	most := 1
	for _, n := range p.Lens {
		most = max(most, n+p.NewKeys)
	}
	p.SeqKV = min(p.SeqKV, most)
	if p.PageSize > 0 {
		p.SeqKV = (most + p.PageSize - 1) / p.PageSize * p.PageSize
	} else {
		p.SeqKV = max(p.SeqKV, most)
	}
	p.Shared, p.Hiding = p.Shared && p.PageSize > 0, p.Hiding && p.Bias.On
	if p.PageSize > 0 && !p.Shared { // sequences share no pages
		need := 0
		for _, n := range p.Lens {
			need += (n + p.NewKeys + p.PageSize - 1) / p.PageSize
		}
		p.Pages = max(p.Pages, need, 1)
	}
}
