package trial

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk"
)

// appendKernel draws calls of attention.Append and attention.Advance.
func appendKernel() Kernel {
	return Kernel{Name: "append", Weight: 2, New: func() Problem { return &appendProblem{} }, Draw: drawAppend}
}

// appendProblem is one of them.
type appendProblem struct {
	attention.AppendProblem
	Lens      []int // SeqLens; nothing is written for a sequence without room
	KeysFirst bool  // in memory the axis of keys comes before that of heads
	NoQ       bool
	Scales    cacheScales
	Advance   int // not 0: the call is Advance by this number of keys
	kernelData
}

// String implements Problem.
func (p *appendProblem) String() string {
	if p.Advance != 0 {
		return fmt.Sprintf("advance by %d, lens=%v", p.Advance, p.Lens)
	}
	return fmt.Sprintf("%v/rope=%d,%v lens=%v", p.AppendProblem.DecodeProblem, p.RoPE.Dims, p.RoPE.Interleaved, p.Lens)
}

// Supports implements Problem. The one kernel runs on every device that runs decode.
func (p *appendProblem) Supports(*vk.Caps) error { return p.Validate() }

// decode returns the problem as one of decodeKernel, whose methods draw tables.
func (p *appendProblem) decode() *decodeProblem {
	return &decodeProblem{DecodeProblem: p.DecodeProblem, Lens: p.Lens, KeysFirst: p.KeysFirst, kernelData: p.kernelData}
}

// rotate returns row rotated by RoPE for a position, and the error that each element may have.
// Elements are rounded to a format with relative spacing eps, and spacing least near 0.
func (p *appendProblem) rotate(row []float64, cos, sin []float32, position int, eps, least float64) (out, bounds []float64) {
	bounds = make([]float64, len(row))
	for i := range p.RoPE.Dims / 2 {
		x, y := ref.RotaryPair(p.RoPE, i)
		// The error is that of two products and a sum in float32, then of rounding to the
		// format, where the result may be subnormal.
		size := max(row[x], -row[x]) + max(row[y], -row[y])
		bounds[x] = (eps+0x1p-21)*size + least
		bounds[y] = bounds[x]
	}
	return ref.Rotate(p.RoPE, row, cos, sin, position), bounds
}

// tensors returns those of the call.
func (p *appendProblem) tensors() []guard.Tensor {
	ints := func(x []int32) (y []float64) {
		for _, n := range x {
			y = append(y, float64(n))
		}
		return y
	}
	lens := make([]int32, p.Batch)
	for b, n := range p.Lens {
		lens[b] = int32(n)
	}
	if p.Advance != 0 {
		t := guard.Tensor{Name: "seq_lens", DType: dtype.Int32, Shape: p.SeqLensShape(), Values: ints(lens), Want: ints(lens), Place: &guard.Place{Offset: 3}}
		for b := range t.Want {
			t.Want[b] += float64(p.Advance)
		}
		return []guard.Tensor{t}
	}
	d := p.decode()
	in := ref.DecodeInputs[float64]{KeysFirst: p.KeysFirst, SeqLens: lens}
	d.drawTables(&in)
	if p.CacheRows > 0 { // no row is of two sequences
		in.CacheBatchIdx = in.CacheBatchIdx[:0]
		for _, row := range p.Rand(22).Perm(p.CacheRows)[:p.Batch] {
			in.CacheBatchIdx = append(in.CacheBatchIdx, int32(row))
		}
	}
	var cos, sin []float32
	if p.RoPE.Dims > 0 {
		cos, sin = attention.RoPETable(p.SeqKV, p.RoPE.Dims, 10000)
	}
	k, v, q := p.update("k", p.CacheDType(), d.memory(p.KShape()), 0), p.update("v", p.CacheDType(), d.memory(p.VShape()), 1), p.update("q", p.DType, p.QShape(), 2)
	scales := p.scales(&k, &v)
	newK := guard.Tensor{Name: "new_k", DType: p.DType, Shape: p.NewKShape(), Values: p.Numbers(3, p.DType, product(p.NewKShape()), call.OrOne(p.Magnitude))}
	for i, x := range newK.Values { // rotated elements must be within the format
		if limit := call.Most(p.DType) / 2; max(x, -x) > limit {
			newK.Values[i] = float64(p.DType.Round(float32(x / 4)))
		}
	}
	newV := guard.Tensor{Name: "new_v", DType: p.DType, Shape: p.NewVShape(), Values: p.Numbers(4, p.DType, product(p.NewVShape()), call.OrOne(p.Second))}
	var list []guard.Tensor
	want := []float64{0}
	if !p.want(&in, cos, sin, &k, &v, &q, &newK, &newV, &scales) {
		want[0] = 1 // BAD_LENGTH of lib/cache_status.glsl
	}
	for _, s := range scales {
		if len(s.Values) > 0 {
			list = append(list, s)
		}
	}
	list = append(list, k, v, newK, newV,
		guard.Tensor{Name: "seq_lens", DType: dtype.Int32, Shape: p.SeqLensShape(), Values: ints(lens)},
		guard.Tensor{Name: "state", DType: dtype.Int32, Shape: []int{1}, Values: []float64{0}, Want: want})
	if p.PageSize > 0 {
		list = append(list, guard.Tensor{Name: "block_table", DType: dtype.Int32, Shape: p.BlockTableShape(), Values: ints(in.BlockTable)})
	}
	if p.CacheRows > 0 {
		list = append(list, guard.Tensor{Name: "cache_batch_idx", DType: dtype.Int32, Shape: p.SeqLensShape(), Values: ints(in.CacheBatchIdx)})
	}
	if p.RoPE.Dims > 0 {
		angles := []int{p.SeqKV, p.RoPE.Dims / 2}
		table := func(name string, x []float32) guard.Tensor {
			t := guard.Tensor{Name: name, Shape: angles, Values: make([]float64, len(x)), Place: &guard.Place{Offset: int(p.Seed % 5)}}
			for i := range x {
				t.Values[i] = float64(x[i])
			}
			return t
		}
		list = append(list, table("cos", cos), table("sin", sin))
		if !p.NoQ {
			list = append(list, q)
		}
	}
	return list
}

// update returns a tensor that the call writes parts of.
func (p *appendProblem) update(name string, format dtype.DType, shape []int, stream int) guard.Tensor {
	t := guard.Tensor{Name: name, DType: format, Shape: shape, Values: p.before(stream, format, product(shape)), Bounds: make([]float64, product(shape))}
	t.Want = slices.Clone(t.Values)
	return t
}

// scales returns those of k and v, with nothing in them if these have none, and says where both lie.
func (p *appendProblem) scales(k, v *guard.Tensor) (scales [2]guard.Tensor) {
	if p.Cache == attention.CacheSame {
		return scales
	}
	names, magnitudes, shapes := []string{"k_scale", "v_scale"}, []float64{call.OrOne(p.Magnitude), call.OrOne(p.Second)}, [][]int{p.KScaleShape(), p.VScaleShape()}
	for i, t := range []*guard.Tensor{k, v} {
		if x := p.headScales(&p.DecodeProblem, p.Scales, i, magnitudes[i]); x != nil {
			scales[i] = guard.Tensor{Name: names[i], Shape: []int{len(x)}, Values: x}
		}
		if p.Cache == attention.CacheQ8_0 {
			scales[i] = p.update(names[i], p.ScaleDType(), p.decode().memory(shapes[i]), 5+i)
		}
		t.Place, scales[i].Place = p.cachePlaces(&p.DecodeProblem, i)
	}
	return scales
}

// want8 stores a row of head h as row `at` of k or v in a cache of 8 bits, with its scales for
// q8_0. Elements of the row may be off by bounds.
func (p *appendProblem) want8(t, scales *guard.Tensor, at, h int, row, bounds []float64) {
	scale := 1.0
	if n := len(scales.Values); p.Cache == attention.CacheE4M3 && n > 0 {
		scale = scales.Values[h%n]
	}
	s := store8(p.Cache, row, bounds, scale)
	copy(t.Want[at*len(row):], s.elements)
	copy(t.Bounds[at*len(row):], s.bounds)
	if p.Cache == attention.CacheQ8_0 {
		n := len(s.scales)
		copy(scales.Want[at*n:], s.scales)
		copy(scales.Bounds[at*n:], s.scaleBounds)
	}
}

// want sets k, v, their scales and q to the results of the call. It reports whether all sequences
// have room.
func (p *appendProblem) want(in *ref.DecodeInputs[float64], cos, sin []float32, k, v, q, newK, newV *guard.Tensor, scales *[2]guard.Tensor) (all bool) {
	dv, eps, least := p.ValueHeadDim(), p.DType.Eps(), 0x1p-24
	keyEps, keyLeast := eps, least
	if p.Cache != attention.CacheSame { // want8 rounds keys
		keyEps, keyLeast = 0, 0
	}
	key := func(r ref.Row, position int) {
		from, at := (r.Batch*p.NumKVHeads+r.Head)*p.NewKeys+r.Row, in.At(&p.DecodeProblem, r.Batch, r.Head, position)
		value := newV.Values[from*dv:][:dv]
		rotated, bounds := p.rotate(newK.Values[from*p.HeadDim:][:p.HeadDim], cos, sin, position, keyEps, keyLeast)
		if p.Cache != attention.CacheSame {
			p.want8(k, &scales[0], at, r.Head, rotated, bounds)
			p.want8(v, &scales[1], at, r.Head, value, make([]float64, dv))
			return
		}
		copy(k.Want[at*p.HeadDim:], rotated)
		copy(k.Bounds[at*p.HeadDim:], bounds)
		copy(v.Want[at*dv:], value)
	}
	query := func(r ref.Row, position int) {
		at := ((r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row) * p.HeadDim
		rotated, bounds := p.rotate(q.Values[at:][:p.HeadDim], cos, sin, position, eps, least)
		copy(q.Want[at:], rotated)
		copy(q.Bounds[at:], bounds)
	}
	return ref.Append(p.AppendProblem, p.Lens, key, query)
}

// Check implements Problem.
func (p *appendProblem) Check(ctx context.Context, r *Runner) error {
	return p.check(ctx, r, "append", p.tensors(), func(c *vk.Cmd, t map[string]vk.Tensor) error {
		if p.Advance != 0 {
			return attention.Advance(c, t["seq_lens"], p.Advance)
		}
		k, v, kScale, vScale := p.decode().cache(t)
		return attention.Append(c, attention.AppendTensors{
			NewK: t["new_k"], NewV: t["new_v"], K: k, V: v, KScale: kScale, VScale: vScale, Q: t["q"], Cos: t["cos"], Sin: t["sin"],
			SeqLens: t["seq_lens"], BlockTable: t["block_table"], CacheBatchIdx: t["cache_batch_idx"], State: t["state"],
		}, p.AppendProblem)
	})
}

// Smaller implements Problem.
func (p *appendProblem) Smaller() (list []Problem) {
	add := func(change func(q *appendProblem)) {
		q := *p
		q.Lens = slices.Clone(p.Lens)
		change(&q)
		if !reflect.DeepEqual(&q, p) && q.Validate() == nil {
			list = append(list, &q)
		}
	}
	for _, off := range []func(q *appendProblem){
		func(q *appendProblem) { q.PageSize, q.Pages = 0, 0 },
		func(q *appendProblem) { q.CacheRows = 0 },
		func(q *appendProblem) { q.RoPE = attention.RoPE{} },
		func(q *appendProblem) { q.RoPE.Interleaved = false },
		func(q *appendProblem) { q.KeysFirst, q.NoQ = false, false },
		func(q *appendProblem) { q.ValueDim = 0 },
		func(q *appendProblem) { q.Cache, q.Scales = attention.CacheSame, noScales },
		func(q *appendProblem) { q.Scales = noScales },
		func(q *appendProblem) { q.Batch, q.Lens = 1, q.Lens[:1] },
		func(q *appendProblem) { q.Batch, q.Lens = 1, q.Lens[len(q.Lens)-1:] },
		func(q *appendProblem) { q.NumHeads, q.NumKVHeads = 1, 1 },
		func(q *appendProblem) { q.NewKeys, q.SeqQ = (q.NewKeys+1)/2, (q.SeqQ+1)/2 },
		func(q *appendProblem) { clear(q.Lens) },
	} {
		add(off)
	}
	p.smaller(func(d kernelData) { add(func(q *appendProblem) { q.kernelData = d }) })
	return list
}

// drawAppend draws a problem.
func drawAppend(family, rng *rand.Rand, s Space) Problem {
	p := &appendProblem{}
	var ok bool
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	p.HeadDim = decodeDim(family)
	if family.IntN(4) == 0 {
		p.ValueDim = decodeDim(family)
	}
	p.Scales = drawCacheFormat(family, &p.DecodeProblem)
	switch family.IntN(4) {
	case 0, 1:
		p.RoPE.Dims = p.HeadDim
	case 2:
		p.RoPE.Dims = 2 * (1 + family.IntN(p.HeadDim/2))
	}
	p.RoPE.Interleaved = p.RoPE.Dims > 0 && chance(family, 2)
	p.KeysFirst, p.NoQ = chance(family, 2), chance(family, 4)
	switch family.IntN(3) {
	case 0:
		p.PageSize = attention.MinPageSize << family.IntN(6)
	case 1:
		p.CacheRows = 1 // a size
	}
	advance := chance(family, 6)
	p.Data = drawData(family, rng)

	heads, group := 1+rng.IntN(4), one(rng, 1, 2, 4, 8)
	longest := Size(rng, 600)
	p.Batch, p.NewKeys = 1+rng.IntN(6), one(rng, 1, 1, 2, 3, 1+rng.IntN(40))
	cost := func() float64 {
		return 40 * float64(p.Batch*heads) * float64(p.HeadDim+p.ValueHeadDim()) * float64(longest+p.NewKeys*group)
	}
	within(rng, budget(rng, s), cost, &p.Batch, &p.NewKeys, &heads, &group, &longest)
	p.NumHeads, p.NumKVHeads, p.SeqQ = heads*group, heads, max(1, p.NewKeys-rng.IntN(2))
	p.SeqKV = longest + p.NewKeys
	if p.PageSize > 0 {
		p.SeqKV = (p.SeqKV + p.PageSize - 1) / p.PageSize * p.PageSize
		p.Pages = p.Batch*p.SeqKV/p.PageSize + rng.IntN(4)
	}
	if p.CacheRows > 0 {
		p.CacheRows = p.Batch + rng.IntN(4)
	}
	for range p.Batch {
		n := rng.IntN(p.SeqKV - p.NewKeys + 1)
		if rng.IntN(12) == 0 {
			n = p.SeqKV - p.NewKeys + 1 + rng.IntN(9) // one too many
		}
		p.Lens = append(p.Lens, n)
	}
	if advance {
		p.Advance = one(rng, 1, -1, 7, 1000)
	}
	return p
}
