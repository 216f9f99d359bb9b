package call

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Decode is a call of attention.Decode.
type Decode struct {
	attention.DecodeProblem
	Impl      attention.Impl
	Lens      []int // SeqLens
	KeysFirst bool  // in memory the axis of keys comes before the axis of heads
	NoLSE     bool
	Shared    bool // sequences may have pages in common
	Hiding    bool // the bias is -Inf for one key in eight
	Scales    CacheScales
	Config    *attention.DecodeConfig
	onePass
	Data
}

func (d *Decode) Validate() error {
	if err := d.DecodeProblem.Validate(); err != nil {
		return err
	}
	return checkLens(&d.DecodeProblem, d.Lens, 0, d.SeqKV-d.NewKeys)
}

// checkLens checks the lengths of sequences.
func checkLens(p *attention.DecodeProblem, lens []int, least, most int) error {
	if len(lens) != p.Batch {
		return fmt.Errorf("call: %d lengths of %d sequences", len(lens), p.Batch)
	}
	for b, n := range lens {
		if n < least || n > most {
			return fmt.Errorf("call: length %d of sequence %d is not from %d to %d", n, b, least, most)
		}
	}
	return nil
}

// Tidy sets the fields that follow from the others: the capacity, and the pages that the keys need.
func (d *Decode) Tidy() {
	tidy(&d.DecodeProblem, d.Lens)
	most := 1
	for _, n := range d.Lens {
		most = max(most, n+d.NewKeys)
	}
	d.SeqKV = min(d.SeqKV, most)
	if d.PageSize > 0 {
		d.SeqKV = (most + d.PageSize - 1) / d.PageSize * d.PageSize
	} else {
		d.SeqKV = max(d.SeqKV, most)
	}
	d.Shared, d.Hiding = d.Shared && d.PageSize > 0, d.Hiding && d.Bias.On
	if d.PageSize > 0 && !d.Shared { // sequences share no pages
		need := 0
		for _, n := range d.Lens {
			need += (n + d.NewKeys + d.PageSize - 1) / d.PageSize
		}
		d.Pages = max(d.Pages, need, 1)
	}
}

// tidy sets what follows from the sizes of every call with a cache.
func tidy(p *attention.DecodeProblem, lens []int) {
	p.Batch, p.HeadDim = len(lens), (p.HeadDim+7)/8*8
	if p.NumKVHeads > 0 {
		p.NumHeads = max(1, p.NumHeads/p.NumKVHeads) * p.NumKVHeads
	}
	if !p.Bias.On {
		p.Bias = attention.Bias{}
	}
	if !p.Window.On {
		p.Window = attention.Window{}
	}
	if p.PageSize == 0 {
		p.Pages = 0
	}
}

func (d *Decode) Tensors() []Tensor {
	p := &d.DecodeProblem
	batch := p.SeqLensShape()
	k, v, kScale, vScale := d.cache(d.Second, 1)
	k.Main, v.Main = true, true
	return []Tensor{
		{Name: "q", DType: p.DType, Shape: p.QShape(), Scale: d.Magnitude, Main: true},
		k,
		v,
		{Name: "bias", DType: p.Bias.DType, Shape: p.BiasShape(), Off: !p.Bias.On},
		{Name: "alibi_slopes", Shape: p.SlopesShape(), Scale: 0.1, Off: p.ALiBi == attention.ALiBiOff},
		{Name: "sinks", Shape: p.SinksShape(), Scale: 2, Off: !p.Sinks},
		kScale,
		vScale,
		{Name: "seq_lens", DType: dtype.Int32, Shape: batch, Own: true, Most: p.SeqKV},
		{Name: "block_table", DType: dtype.Int32, Shape: p.BlockTableShape(), Own: true, Off: p.PageSize == 0},
		{Name: "cache_batch_idx", DType: dtype.Int32, Shape: batch, Own: true, Off: p.CacheRows == 0, Most: p.CacheRows - 1},
		{Name: "left_pad", DType: dtype.Int32, Shape: batch, Own: true, Off: !p.LeftPad, Most: p.SeqKV},
		{Name: "tree_mask", DType: dtype.Int32, Shape: p.TreeMaskShape(), Own: true, Off: !p.Tree},
		{Name: "state", DType: dtype.Int32, Shape: p.StateShape(), Role: Update, Own: true, State: true},
		{Name: "o", DType: p.DType, Shape: p.OShape(), Role: Output},
		{Name: "lse", Shape: p.LSEShape(), Role: Output, Off: d.NoLSE},
	}
}

// cache returns K, V and their scales. K and V of 8 bits are stored by Adjust.
func (d *Decode) cache(kSize, vSize float64) (k, v, kScale, vScale Tensor) {
	p := &d.DecodeProblem
	k = Tensor{Name: "k", File: "k_cache", DType: p.CacheDType(), Shape: d.memory(p.KShape()), Scale: kSize}
	v = Tensor{Name: "v", File: "v_cache", DType: p.CacheDType(), Shape: d.memory(p.VShape()), Scale: vSize}
	kScale = Tensor{Name: "k_scale", DType: p.ScaleDType(), Shape: p.KScaleShape(), Own: true}
	vScale = Tensor{Name: "v_scale", DType: p.ScaleDType(), Shape: p.VScaleShape(), Own: true}
	for i, x := range [][2]*Tensor{{&k, &kScale}, {&v, &vScale}} {
		switch p.Cache {
		case attention.CacheSame:
			x[1].Off = true
			continue
		case attention.CacheQ8_0:
			x[1].Shape = d.memory(x[1].Shape)
		case attention.CacheE4M3:
			x[1].Off = d.Scales == NoScales
			if d.Scales == OneScale {
				x[1].Shape = []int{1}
			}
		}
		x[0].Own = true
		x[0].Place, x[1].Place = d.cachePlaces(p, i)
	}
	return k, v, kScale, vScale
}

// memory returns the shape that a cache has in memory.
func (d *Decode) memory(shape []int) []int {
	if d.KeysFirst {
		shape[1], shape[2] = shape[2], shape[1]
	}
	return shape
}

// Adjust draws tables and hidden keys, and stores caches of 8 bits.
func (d *Decode) Adjust(x Values) {
	d.Tables(x)
	d.store(x)
	d.hideInBias(x)
}

// hideInBias hides one key in eight.
func (d *Decode) hideInBias(x Values) {
	if rng := d.Rand(21); d.Hiding {
		for i := range x["bias"] {
			if rng.IntN(8) == 0 {
				x["bias"][i] = math.Inf(-1)
			}
		}
	}
}

// Tables draws pages in random order, rows of the cache, hidden keys and trees. Entries of the block
// table that no key needs are invalid.
func (d *Decode) Tables(x Values) {
	rng := d.Rand(20)
	x["state"] = make([]float64, Product(d.StateShape()))
	for _, n := range d.Lens {
		x["seq_lens"] = append(x["seq_lens"], float64(n))
	}
	if d.PageSize > 0 {
		pages, each, next := rng.Perm(d.Pages), d.SeqKV/d.PageSize, 0
		for b := range d.Batch {
			used := (d.Lens[b] + d.NewKeys + d.PageSize - 1) / d.PageSize
			for i := range each {
				entry := []int{-1, math.MaxInt32, math.MinInt32, d.Pages}[rng.IntN(4)]
				if i < used && d.Shared {
					entry = pages[rng.IntN(d.Pages)]
				} else if i < used {
					entry = pages[next%d.Pages]
					next++
				}
				x["block_table"] = append(x["block_table"], float64(entry))
			}
		}
	}
	for b := range d.Batch {
		if d.CacheRows > 0 {
			x["cache_batch_idx"] = append(x["cache_batch_idx"], float64((b*7+int(d.Seed%64))%d.CacheRows))
		}
	}
	for b := range d.Batch {
		if d.LeftPad {
			x["left_pad"] = append(x["left_pad"], float64(rng.IntN(d.Lens[b]+d.NewKeys+1)))
		}
	}
	for range d.Batch * d.SeqQ {
		if d.Tree {
			x["tree_mask"] = append(x["tree_mask"], float64(int32(rng.Uint32())), float64(int32(rng.Uint32())))
		}
	}
}

// ownRows gives each sequence a row of the cache that no other has.
func (d *Decode) ownRows(x Values) {
	if d.CacheRows > 0 {
		for b, row := range d.Rand(22).Perm(d.CacheRows)[:d.Batch] {
			x["cache_batch_idx"][b] = float64(row)
		}
	}
}

// store makes K and V as a cache holds them: NaN in keys that no query sees, and 8 bits from
// float32 where the cache has 8 bits.
func (d *Decode) store(x Values) {
	p := &d.DecodeProblem
	dims, sizes := []int{p.HeadDim, p.ValueHeadDim()}, []float64{min(OrOne(d.Second), 100), 1}
	for i, name := range []string{"k", "v"} {
		if p.Cache != attention.CacheSame {
			x[name] = d.Numbers(1+i, dtype.Float32, Product(p.KShape())/p.HeadDim*dims[i], sizes[i])
		}
	}
	d.hideUnseen(x)
	for i, name := range []string{"k", "v"} {
		if p.Cache == attention.CacheSame {
			continue
		}
		scales := d.headScales(p, d.Scales, i, sizes[i])
		c := ref.Quantise(p.Cache, x[name], dims[i], ref.HeadScale(p, d.KeysFirst, scales))
		if x[name] = c.Stored; p.Cache == attention.CacheQ8_0 {
			scales = c.Scales
		}
		if scales != nil {
			x[name+"_scale"] = scales
		}
	}
}

// hideUnseen fills keys and values that no query sees with NaN: those after a sequence's last
// one, before its window and left of its padding, and pages of no sequence.
func (d *Decode) hideUnseen(x Values) {
	p, in := &d.DecodeProblem, decodeInputs(d, x, x)
	seen := make([]bool, Product(p.KShape())/p.HeadDim)
	for b := range p.Batch {
		n := d.Lens[b] + p.NewKeys
		first, _ := p.MaskOf(p.SeqQ, n).Keys(0)
		if p.LeftPad {
			first = max(first, int(in.LeftPad[b]))
		}
		for j := first; j < n; j++ {
			for kv := range p.NumKVHeads {
				seen[in.At(p, b, kv, j)] = true
			}
		}
	}
	for i, ok := range seen {
		if !ok {
			fill(in.K[i*p.HeadDim:][:p.HeadDim], math.NaN())
			fill(in.V[i*p.ValueHeadDim():][:p.ValueHeadDim()], math.NaN())
		}
	}
}

// Product returns the number of elements of a shape.
func Product(shape []int) int { return vk.Tensor{Shape: shape}.NumElements() }

// decodeInputs returns tensors as the reference has them. K and V are as they are stored. Tables has
// the tensors of integers.
func decodeInputs[T ref.Float](d *Decode, x map[string][]T, tables Values) ref.DecodeInputs[T] {
	in, ints := ref.DecodeInputs[T]{KeysFirst: d.KeysFirst}, map[string][]int32{}
	for _, name := range []string{"seq_lens", "block_table", "cache_batch_idx", "left_pad", "tree_mask"} {
		for _, n := range tables[name] {
			ints[name] = append(ints[name], int32(n))
		}
	}
	Bind(x, &in)
	Bind(ints, &in)
	return in
}

func (d *Decode) Want(x Values, _ kit.Pass) Outputs { return wantDecode(d, x, x, 0) }

// sampleOperations bounds the operations of the reference of a sample: some seconds on a few cores.
const sampleOperations = 2e9

// Sampled returns Want of some rows.
func (d *Decode) Sampled(x map[string][]float32) Outputs {
	return wantDecode(d, x, d.tables(x), sampleOperations)
}

// tables returns the tables of x, and the tables of Tables that x lacks.
func (d *Decode) tables(x map[string][]float32) Values {
	tables := Values{}
	d.Tables(tables)
	for name := range tables {
		for i, n := range x[name] {
			tables[name][i] = float64(n)
		}
	}
	return tables
}

// wantDecode returns the outputs, in most operations at the most; 0: all.
func wantDecode[T ref.Float](d *Decode, x map[string][]T, tables Values, most float64) Outputs {
	p, in := &d.DecodeProblem, decodeInputs(d, x, tables)
	dv := p.ValueHeadDim()
	if p.Cache != attention.CacheSame {
		for name, to := range map[string]*[]T{"k": &in.K, "v": &in.V} {
			scales := x[name+"_scale"]
			*to = ref.Values8(p.Cache, *to, len(*to)/(Product(p.KShape())/p.HeadDim), ref.HeadScale(p, d.KeysFirst, scales), scales)
		}
	}
	heads, err := ref.Decode(in, *p, most)
	if err != nil {
		panic(err) // Validate refuses it
	}
	var o, lse Wanted
	for _, h := range heads {
		for x, r := range h.Rows {
			at := (r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row
			o.put(at*dv, h.O[x*dv:][:dv], slices.Repeat([]float64{h.Bound.O}, dv))
			lse.put(at, h.LSE[x:x+1], []float64{h.Bound.LSE})
		}
	}
	if most == 0 {
		o.arrange()
		lse.arrange()
	}
	return Outputs{"o": o, "lse": lse, "state": {Want: make([]float64, Product(p.StateShape()))}}
}

// put adds a row whose first element is number at.
func (w *Wanted) put(at int, want, bounds []float64) {
	for i := range want {
		w.Sample = append(w.Sample, at+i)
	}
	w.Want, w.Bounds = append(w.Want, want...), append(w.Bounds, bounds...)
}

// blank returns an output of zeros, with bounds of zero.
func blank(shape []int) Wanted {
	return Wanted{Want: make([]float64, Product(shape)), Bounds: make([]float64, Product(shape))}
}

// arrange brings all elements, which are a sample, into their order.
func (w *Wanted) arrange() {
	all := blank([]int{len(w.Want)})
	for i, at := range w.Sample {
		all.Want[at], all.Bounds[at] = w.Want[i], w.Bounds[i]
	}
	*w = all
}

func (d *Decode) Host() Host { return Host{Choose: d.choose, Bind: d.bind} }

func (d *Decode) choose(caps *vk.Caps, _ kit.Pass) (kit.Plan, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	return attention.ChooseDecode(caps, d.DecodeProblem, d.options(nil))
}

func (d *Decode) bind(t map[string]vk.Tensor, workspace *vk.Buffer, _ kit.Pass) Recording {
	x, p, o := cached[attention.DecodeTensors](d, t), d.DecodeProblem, d.options(workspace)
	return func(c *vk.Cmd) error { return attention.Decode(c, x, p, o) }
}

func (d *Decode) options(workspace *vk.Buffer) attention.Options {
	return attention.Options{Impl: d.Impl, DecodeConfig: d.Config, Tuning: d.Tuning, Workspace: workspace}
}

// cached binds tensors to the tensors of a function, with the cache's axes in the function's order.
func cached[T any](d *Decode, t map[string]vk.Tensor) (to T) {
	t = maps.Clone(t)
	for _, name := range []string{"k", "v", "k_scale", "v_scale"} {
		if x := t[name]; d.KeysFirst && len(x.Shape) == 4 {
			t[name] = x.Permute(0, 2, 1, 3)
		}
	}
	Bind(t, &to)
	return to
}
