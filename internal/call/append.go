package call

import (
	"math"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Append is a call of attention.Append or attention.Advance.
type Append struct {
	Step    // Lens: nothing is written for a sequence without room
	NoQ     bool
	Advance int // not 0: the call is Advance by this number of keys
}

// Validate implements Call. A sequence may have any length.
func (a *Append) Validate() error {
	if err := a.problem().Validate(); err != nil {
		return err
	}
	return checkLens(&a.DecodeProblem, a.Lens, math.MinInt32, math.MaxInt32)
}

func (a *Append) Tensors() []Tensor {
	p := a.problem()
	batch, lens := p.SeqLensShape(), Tensor{Name: "seq_lens", DType: dtype.Int32, Shape: p.SeqLensShape(), Own: true, Most: p.SeqKV}
	if a.Advance != 0 {
		lens.Role, lens.Place = Update, &guard.Place{Offset: 3}
		return []Tensor{lens}
	}
	k, v, kScale, vScale := a.cache(1, 1)
	k.Role, v.Role = Update, Update
	if p.Cache == attention.CacheQ8_0 {
		kScale.Role, vScale.Role, kScale.Own, vScale.Own = Update, Update, false, false
	}
	return append([]Tensor{
		k,
		v,
		{Name: "q", DType: p.DType, Shape: p.QShape(), Role: Update, Off: p.RoPE.Dims == 0 || a.NoQ},
		{Name: "new_k", File: "k_new", DType: p.DType, Shape: p.NewKShape(), Scale: a.Magnitude, Main: true},
		{Name: "new_v", File: "v_new", DType: p.DType, Shape: p.NewVShape(), Scale: a.Second, Main: true},
		kScale,
		vScale,
		lens,
		{Name: "block_table", DType: dtype.Int32, Shape: p.BlockTableShape(), Own: true, Off: p.PageSize == 0},
		{Name: "cache_batch_idx", DType: dtype.Int32, Shape: batch, Own: true, Off: p.CacheRows == 0},
		{Name: "state", DType: dtype.Int32, Shape: []int{1}, Role: Update, Own: true, State: true},
	}, a.angles(&p)...)
}

// angles returns the tensors of cosines and sines.
func (d *Data) angles(p *attention.AppendProblem) []Tensor {
	x := Tensor{Name: "cos", Shape: []int{p.SeqKV, p.RoPE.Dims / 2}, Own: true, Off: p.RoPE.Dims == 0, Place: &guard.Place{Offset: int(d.Seed % 5)}}
	y := x
	y.Name = "sin"
	return []Tensor{x, y}
}

// Adjust draws tables, what is in a cache of 8 bits, and angles.
func (a *Append) Adjust(x Values) {
	p := &a.DecodeProblem
	a.Tables(x)
	a.ownRows(x)
	x["state"] = x["state"][:1]
	if a.Advance != 0 {
		return
	}
	shapes, sizes := [][]int{p.KShape(), p.VShape()}, []float64{OrOne(a.Magnitude), OrOne(a.Second)}
	for i, name := range []string{"k", "v"} {
		if p.Cache != attention.CacheSame {
			x[name] = a.before(i, p.CacheDType(), Product(shapes[i]))
		}
		if scales := a.headScales(p, a.Scales, i, sizes[i]); scales != nil {
			x[name+"_scale"] = scales
		}
	}
	for i, y := range x["new_k"] { // rotated elements must be within the format
		if limit := Most(p.DType) / 2; max(y, -y) > limit {
			x["new_k"][i] = float64(p.DType.Round(float32(y / 4)))
		}
	}
	if a.RoPE.Dims > 0 {
		cos, sin := attention.Frequencies{Dims: a.RoPE.Dims}.Table(p.SeqKV)
		for i := range cos {
			x["cos"], x["sin"] = append(x["cos"], float64(cos[i])), append(x["sin"], float64(sin[i]))
		}
	}
}

func (a *Append) Want(x Values, _ kit.Pass) Outputs {
	out := Outputs{}
	if a.Advance != 0 {
		want := slices.Clone(x["seq_lens"])
		for b := range want {
			want[b] += float64(a.Advance)
		}
		return Outputs{"seqlens": {Want: want}}
	}
	for _, name := range appended {
		out[joined(name)] = Wanted{Want: slices.Clone(x[name]), Bounds: make([]float64, len(x[name]))}
	}
	state := appendRows(a, x, x, func(name string, at int, want, bounds []float64) {
		copy(out[joined(name)].Want[at:], want)
		copy(out[joined(name)].Bounds[at:], bounds)
	})
	out["state"] = Wanted{Want: []float64{state}}
	return out
}

// appended are the tensors that Append may write.
var appended = []string{"q", "k", "v", "k_scale", "v_scale"}

// Sampled returns Want of the rows that are written, for tables of Tables.
func (a *Append) Sampled(x map[string][]float32) Outputs {
	tables, list := Values{}, map[string]*Wanted{}
	a.Tables(tables)
	appendRows(a, x, tables, func(name string, at int, want, bounds []float64) {
		if list[name] == nil {
			list[name] = &Wanted{}
		}
		list[name].put(at, want, bounds)
	})
	out := Outputs{}
	for name, w := range list {
		out[joined(name)] = *w
	}
	return out
}

// appendRows calls put with each row that is written, and returns State.
func appendRows[T ref.Float](a *Append, x map[string][]T, tables Values, put func(name string, at int, want, bounds []float64)) (state float64) {
	p, in := &a.DecodeProblem, decodeInputs(&a.Decode, x, tables)
	dim, dv, half, least := p.HeadDim, p.ValueHeadDim(), p.DType.Eps()/2, 0x1p-24
	key := func(r ref.Row, position int) {
		from, at := (r.Batch*p.NumKVHeads+r.Head)*p.NewKeys+r.Row, in.At(p, r.Batch, r.Head, position)
		if at < 0 || at*dim >= len(x["k"]) {
			if state = badPage; p.PageSize == 0 {
				state = badBatch
			}
			return
		}
		newKey, value := Wide(x["new_k"][from*dim:][:dim]), Wide(x["new_v"][from*dv:][:dv])
		if p.Cache != attention.CacheSame {
			rotated, bounds := rotate(a, x, newKey, position, 0, 0)
			put8(a, x, "k", at, r.Head, rotated, bounds, put)
			put8(a, x, "v", at, r.Head, value, make([]float64, dv), put)
			return
		}
		rotated, bounds := rotate(a, x, newKey, position, half, least)
		put("k", at*dim, rotated, bounds)
		put("v", at*dv, value, make([]float64, dv))
	}
	query := func(r ref.Row, position int) {
		at := ((r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row) * dim
		if row := in.CacheBatchIdx; row != nil && (row[r.Batch] < 0 || int(row[r.Batch]) >= p.CacheRows) {
			return // queries of such a sequence are left
		}
		if q := x["q"]; q != nil {
			rotated, bounds := rotate(a, x, Wide(q[at:][:dim]), position, half, least)
			put("q", at, rotated, bounds)
		}
	}
	if !ref.Append(a.problem(), a.Lens, key, query) {
		state += badLength
	}
	return state
}

// Wide returns numbers in float64, nil for nil.
func Wide[T ref.Float](x []T) (y []float64) {
	y = slices.Grow(y, len(x))
	for _, v := range x {
		y = append(y, float64(v))
	}
	return y
}

// The bits of State, as lib/cache_status.glsl has them.
const (
	badLength = 1
	badPage   = 2
	badBatch  = 4
)

// rotate returns row rotated by RoPE for a position, and the error that each element may have.
// Elements are rounded to a format by a relative half, and least near 0.
func rotate[T ref.Float](a *Append, in map[string][]T, row []float64, position int, half, least float64) (out, bounds []float64) {
	out, bounds = ref.Rotate(a.RoPE, row, in["cos"], in["sin"], position), make([]float64, len(row))
	for i := range a.RoPE.Dims / 2 {
		x, y := ref.RotaryPair(a.RoPE, i)
		// Two products and a sum in float32 make the error, and rounding to the format, where the
		// result may be subnormal. Multiples of a right angle are exact.
		angle := position*a.RoPE.Dims/2 + i
		if in["cos"][angle] == 0 || in["sin"][angle] == 0 {
			continue
		}
		size := math.Abs(row[x]) + math.Abs(row[y])
		bounds[x] = half*math.Abs(out[x]) + 0x1p-21*size + least
		bounds[y] = half*math.Abs(out[y]) + 0x1p-21*size + least
	}
	return out, bounds
}

// put8 puts a row of head h as row `at` of k or v in a cache of 8 bits, with its scales for q8_0.
// Elements of the row may be off by bounds.
func put8[T ref.Float](a *Append, x map[string][]T, name string, at, h int, row, bounds []float64, put func(name string, at int, want, bounds []float64)) {
	scale, scales := 1.0, x[name+"_scale"]
	if n := len(scales); a.Cache == attention.CacheE4M3 && n > 0 {
		scale = float64(scales[h%n])
	}
	s := store8(a.Cache, row, bounds, scale)
	put(name, at*len(row), s.elements, s.bounds)
	if a.Cache == attention.CacheQ8_0 {
		put(name+"_scale", at*len(s.scales), s.scales, s.scaleBounds)
	}
}

func (a *Append) Host() Host { return Host{Choose: a.choose, Bind: a.bind} }

// choose is Choose. The one kernel has no choice of its own; it is for devices that decode.
func (a *Append) choose(caps *vk.Caps, _ kit.Pass) (kit.Plan, error) {
	kernel := "attention_append." + a.DType.Short()
	if a.Cache != attention.CacheSame {
		kernel = "attention_append_cache8." + a.DType.Short()
	}
	if a.Advance != 0 {
		kernel = "attention_advance"
	}
	if err := a.Validate(); err != nil {
		return nil, err
	}
	_, err := attention.ChooseStep(caps, a.problem(), attention.Options{})
	return simplePlan{"append", 0, []string{kernel}}, err
}

func (a *Append) bind(t map[string]vk.Tensor, _ *vk.Buffer, _ kit.Pass) Recording {
	if n, lens := a.Advance, t["seq_lens"]; n != 0 {
		return func(c *vk.Cmd) error { return attention.Advance(c, lens, n) }
	}
	x, p := cached[attention.AppendTensors](&a.Decode, t), a.problem()
	return func(c *vk.Cmd) error { return attention.Append(c, x, p) }
}

// CacheScales says which scales the key heads of a cache of e4m3 have.
type CacheScales string

// The scales of key heads.
const (
	NoScales  CacheScales = ""
	OneScale  CacheScales = "one" // for all heads
	AllScales CacheScales = "heads"
)

// headScales returns the scales of heads in a cache of e4m3, for K (stream 0) or V. The largest
// numbers, divided by them, are a few times 448, or less.
func (d *Data) headScales(p *attention.DecodeProblem, kind CacheScales, stream int, magnitude float64) []float64 {
	if p.Cache != attention.CacheE4M3 || kind == NoScales {
		return nil
	}
	rng := d.Rand(30 + stream)
	scales := make([]float64, p.NumKVHeads)
	for h := range scales {
		scales[h] = float64(float32(magnitude * d.Largest() / 448 * math.Exp2(4*rng.Float64()-2)))
	}
	if kind == OneScale {
		return scales[:1]
	}
	return scales
}

// cachePlaces returns the layouts of tensor i of a cache of 8 bits, and of its scales. Rows begin
// at multiples of 8 bytes. Scales of blocks have gaps where their blocks have.
func (d *Data) cachePlaces(p *attention.DecodeProblem, i int) (elements, scales *guard.Place) {
	if d.Layout == "" || d.Layout == "p" {
		return &guard.Place{}, &guard.Place{}
	}
	rng := d.Rand(1000 + i)
	rows, matrices, offset := rng.IntN(3), rng.IntN(4), 8*rng.IntN(9)
	scales = &guard.Place{Offset: rng.IntN(9), RowGap: rows, MatrixGap: matrices}
	unit := attention.QuantBlock
	if p.Cache == attention.CacheE4M3 {
		unit, scales = 8, &guard.Place{Offset: rng.IntN(9)}
	}
	return &guard.Place{Offset: offset, RowGap: unit * rows, MatrixGap: unit * matrices}, scales
}

// before returns the elements of a tensor before the call that updates it.
func (d *Data) before(stream int, format dtype.DType, n int) []float64 {
	switch format {
	case dtype.E4M3:
		x := d.Normal(stream, dtype.Float32, n, 10)
		return ref.Quantise(attention.CacheE4M3, x, n, nil).Stored
	case dtype.Int8:
		x := make([]float64, n)
		rng := d.Rand(stream)
		for i := range x {
			x[i] = float64(rng.IntN(255) - 127)
		}
		return x
	}
	return d.Normal(stream, format, n, 1)
}

// A stored8 is a row as Append stores it. If roundoff decides between two neighbours, an element is
// the middle of them, and its bound the distance to them.
type stored8 struct{ elements, bounds, scales, scaleBounds []float64 }

// add adds the element of a number that may be off, with one of some scales.
func (s *stored8) add(q dtype.Quant, x, off float64, scales ...float64) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, scale := range scales {
		of := off
		if part, _ := math.Frexp(scale); part != 0.5 && !math.IsInf(x, 0) { // a power of two divides exactly
			of += eps8 * math.Abs(x)
		}
		low, high = min(low, q.Round(x-of, scale)), max(high, q.Round(x+of, scale))
	}
	s.elements, s.bounds = append(s.elements, (low+high)/2), append(s.bounds, (high-low)/2)
}

// eps8 is the roundoff of a division in float32.
const eps8 = 0x1p-21

// store8 returns a row as Append stores it in a cache of 8 bits; e4m3 has a scale. Elements of the
// row may be off by bounds.
func store8(format attention.CacheFormat, row, bounds []float64, scale float64) (s stored8) {
	q := format.Quant()
	if format == attention.CacheE4M3 {
		for i, x := range row {
			s.add(q, x, bounds[i], scale)
		}
		return s
	}
	for at := 0; at < len(row); at += q.Block() {
		low, high := 0.0, 0.0 // the largest magnitude
		for i := at; i < at+q.Block(); i++ {
			x := math.Abs(row[i])
			low, high = max(low, x-bounds[i]), max(high, x+bounds[i])
		}
		low, high = q.Scale(low*(1-eps8)), q.Scale(high*(1+eps8))
		s.scales, s.scaleBounds = append(s.scales, (low+high)/2), append(s.scaleBounds, (high-low)/2)
		for i := at; i < at+q.Block(); i++ {
			s.add(q, row[i], bounds[i], low, high)
		}
	}
	return s
}
