package attention_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/cover"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// A decodeCase is a problem with the lengths of its sequences.
type decodeCase struct {
	attention.DecodeProblem
	lens []int // SeqLens
}

func (c *decodeCase) seqLens() (lens []int32) {
	for _, n := range c.lens {
		lens = append(lens, int32(n))
	}
	return lens
}

// decodeData is what a case has on the host, as float32 that the format holds.
type decodeData struct {
	q, k, v             []float32 // of contiguous tensors of the problem's shapes
	table, rows, pad    []int32
	tree                []int32
	bias, slopes, sinks []float32

	k8, v8         ref.Cache8[float32] // of a cache of 8 bits, of which k and v are the values
	kScale, vScale []float32           // of e4m3: of each key head
}

// quantise makes the cache one of 8 bits.
func (d *decodeData) quantise(r *rand.Rand, p *attention.DecodeProblem) {
	if p.Cache == attention.CacheSame {
		return
	}
	for range p.NumKVHeads {
		d.kScale, d.vScale = append(d.kScale, float32(math.Exp2(4*r.Float64()-6))), append(d.vScale, float32(math.Exp2(4*r.Float64()-6)))
	}
	head := func(row int) int { return row / p.KShape()[2] % p.NumKVHeads }
	d.k8 = ref.Quantise(p.Cache, d.k, p.HeadDim, func(row int) float32 { return d.kScale[head(row)] })
	d.v8 = ref.Quantise(p.Cache, d.v, p.ValueHeadDim(), func(row int) float32 { return d.vScale[head(row)] })
	d.k, d.v = d.k8.Values, d.v8.Values
}

// upload stores numbers of an 8-bit format, or of another one.
func upload(t *testing.T, x vk.Tensor, data []float32) {
	if x.DType != dtype.Int8 {
		require.NoError(t, x.Upload(t.Context(), data))
		return
	}
	raw := make([]byte, len(data))
	for i, y := range data {
		raw[i] = byte(int8(y))
	}
	require.NoError(t, x.UploadRaw(t.Context(), raw))
}

func size(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// newDecodeData draws a case. Keys beyond the lengths are NaN, and so are pages of no sequence.
func newDecodeData(r *rand.Rand, c *decodeCase) *decodeData {
	p := &c.DecodeProblem
	draw := func(n int, scale float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = p.DType.Round(float32(r.NormFloat64() * scale))
		}
		return x
	}
	d := &decodeData{q: draw(size(p.QShape()), 2), k: draw(size(p.KShape()), 1), v: draw(size(p.VShape()), 1)}
	if p.PageSize > 0 {
		pages := r.Perm(p.Pages)
		each := p.SeqKV / p.PageSize
		for b := range p.Batch {
			for i := range each {
				d.table = append(d.table, int32(pages[(b*each+i)%p.Pages]))
			}
		}
	}
	if p.CacheRows > 0 {
		for _, row := range r.Perm(p.CacheRows)[:p.Batch] {
			d.rows = append(d.rows, int32(row))
		}
	}
	for b := range p.Batch {
		d.pad = append(d.pad, int32(r.IntN(c.lens[b]+p.NewKeys+1)))
	}
	for range p.Batch * p.SeqQ {
		d.tree = append(d.tree, int32(r.Uint32()), int32(r.Uint32()))
	}
	d.bias, d.slopes, d.sinks = draw(size(p.BiasShape()), 1), draw(size(p.SlopesShape()), 0.1), draw(p.NumHeads, 1)
	// What no query sees may be anything.
	seen, in := make([]bool, len(d.k)), d.inputs(c)
	for b := range p.Batch {
		for h := range p.NumKVHeads {
			for j := range c.lens[b] + p.NewKeys {
				at := in.At(p, b, h, j) * p.HeadDim
				for e := range p.HeadDim {
					seen[at+e] = true
				}
			}
		}
	}
	nan := float32(math.NaN())
	for i := range d.k {
		if !seen[i] {
			d.k[i] = nan
		}
	}
	for i := range d.v {
		if !seen[i/p.ValueHeadDim()*p.HeadDim] {
			d.v[i] = nan
		}
	}
	d.quantise(r, p)
	return d
}

// inputs returns what the reference reads.
func (d *decodeData) inputs(c *decodeCase) *ref.DecodeInputs[float32] {
	return &ref.DecodeInputs[float32]{
		Q: d.q, K: d.k, V: d.v, SeqLens: c.seqLens(), BlockTable: d.table, CacheBatchIdx: d.rows, LeftPad: d.pad,
		TreeMask: d.tree, Bias: d.bias, ALiBiSlopes: d.slopes, Sinks: d.sinks,
	}
}

// check compares O and LSE of a case with float64.
func (d *decodeData) check(t *testing.T, c *decodeCase, o, lse []float32) {
	p := &c.DecodeProblem
	heads, err := ref.Decode(*d.inputs(c), *p, 0)
	require.NoError(t, err)
	dv := p.ValueHeadDim()
	for _, h := range heads {
		for x, r := range h.Rows {
			at := (r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row
			for e, want := range h.O[x*dv:][:dv] {
				if off := math.Abs(float64(o[at*dv+e]) - want); !(off <= h.Bound.O) {
					t.Fatalf("o of row %v, column %d = %v, want %v: off by %.3g, tolerance %.3g", r, e, o[at*dv+e], want, off, h.Bound.O)
				}
			}
			if off := math.Abs(float64(lse[at]) - h.LSE[x]); float64(lse[at]) != h.LSE[x] && !(off <= h.Bound.LSE) {
				t.Fatalf("lse of row %v = %v, want %v: off by %.3g, tolerance %.3g", r, lse[at], h.LSE[x], off, h.Bound.LSE)
			}
		}
	}
}

// A decodeRun is a case on a device.
type decodeRun struct {
	t attention.DecodeTensors
	c *vk.Cmd
}

func newDecodeRun(t *testing.T, dev *vk.Device, c *decodeCase, d *decodeData, config *attention.DecodeConfig) *decodeRun {
	p := &c.DecodeProblem
	floats := func(f dtype.DType, shape []int, data []float32) vk.Tensor {
		x := vktest.Tensor(t, dev, f, shape...)
		if data != nil {
			upload(t, x, data)
		}
		return x
	}
	k, v := d.k, d.v
	if p.Cache != attention.CacheSame {
		k, v = d.k8.Stored, d.v8.Stored
	}
	ints := func(shape []int, data []int32) vk.Tensor {
		x := floats(dtype.Int32, shape, nil)
		require.NoError(t, x.UploadInts(t.Context(), data))
		return x
	}
	x := attention.DecodeTensors{
		Q: floats(p.DType, p.QShape(), d.q), K: floats(p.CacheDType(), p.KShape(), k), V: floats(p.CacheDType(), p.VShape(), v),
		O: floats(p.DType, p.OShape(), nil), LSE: floats(dtype.Float32, p.LSEShape(), nil),
		SeqLens: ints(p.SeqLensShape(), c.seqLens()), State: ints(p.StateShape(), make([]int32, size(p.StateShape()))),
	}
	switch p.Cache {
	case attention.CacheE4M3:
		x.KScale, x.VScale = floats(dtype.Float32, p.KScaleShape(), d.kScale), floats(dtype.Float32, p.VScaleShape(), d.vScale)
	case attention.CacheQ8_0:
		x.KScale, x.VScale = floats(dtype.Float16, p.KScaleShape(), d.k8.Scales), floats(dtype.Float16, p.VScaleShape(), d.v8.Scales)
	}
	if p.PageSize > 0 {
		x.BlockTable = ints(p.BlockTableShape(), d.table)
	}
	if p.CacheRows > 0 {
		x.CacheBatchIdx = ints(p.SeqLensShape(), d.rows)
	}
	if p.LeftPad {
		x.LeftPad = ints(p.SeqLensShape(), d.pad)
	}
	if p.Tree {
		x.TreeMask = ints(p.TreeMaskShape(), d.tree)
	}
	if p.Bias.On {
		x.Bias = floats(p.Bias.DType, p.BiasShape(), d.bias)
	}
	if p.ALiBi != attention.ALiBiOff {
		x.ALiBiSlopes = floats(dtype.Float32, p.SlopesShape(), d.slopes)
	}
	if p.Sinks {
		x.Sinks = floats(dtype.Float32, p.SinksShape(), d.sinks)
	}
	cmd, err := dev.NewCmd("decode")
	require.NoError(t, err)
	t.Cleanup(cmd.Close)
	require.NoError(t, attention.Decode(cmd, x, *p, attention.Options{DecodeConfig: config}))
	return &decodeRun{x, cmd}
}

// run returns O, LSE and the state after one more run.
func (r *decodeRun) run(t *testing.T) (o, lse []float32, state []byte) {
	require.NoError(t, r.c.Submit(t.Context()))
	o, lse = make([]float32, r.t.O.NumElements()), make([]float32, r.t.LSE.NumElements())
	require.NoError(t, r.t.O.Download(t.Context(), o))
	require.NoError(t, r.t.LSE.Download(t.Context(), lse))
	state = make([]byte, 4*r.t.State.NumElements())
	require.NoError(t, r.t.State.DownloadRaw(t.Context(), state))
	return o, lse, state
}

// checkDecode runs a case twice, the second time with the first's counters, and compares both.
func checkDecode(t *testing.T, dev *vk.Device, c decodeCase, config *attention.DecodeConfig) {
	r := rand.New(rand.NewPCG(1, uint64(c.SeqKV)))
	d := newDecodeData(r, &c)
	run := newDecodeRun(t, dev, &c, d, config)
	o, lse, state := run.run(t)
	for _, x := range state {
		require.Zero(t, x, "state is zero after a call")
	}
	again, lseAgain, _ := run.run(t)
	require.True(t, sameBits(o, again) && sameBits(lse, lseAgain), "the same bits in a second run")
	d.check(t, &c, o, lse)
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// decodeCases are problems with every feature, sizes that fill nothing, and lengths from nothing
// to the capacity.
func decodeCases() []decodeCase {
	problem := func(heads, kv, seqQ, capacity, dim int, change func(p *attention.DecodeProblem), lens ...int) decodeCase {
		c := decodeCase{attention.DecodeProblem{Problem: attention.Problem{
			Batch: len(lens), NumHeads: heads, NumKVHeads: kv, SeqQ: seqQ, SeqKV: capacity, HeadDim: dim, DType: dtype.Float16, Causal: true,
		}, NewKeys: seqQ}, lens}
		if change != nil {
			change(&c.DecodeProblem)
		}
		return c
	}
	type P = attention.DecodeProblem
	return []decodeCase{
		problem(4, 1, 1, 300, 64, nil, 299),
		problem(1, 1, 1, 100, 128, nil, 0, 1, 99, 50),
		problem(8, 2, 1, 1000, 128, func(p *P) { p.DType = dtype.BFloat16 }, 900, 0, 333),
		problem(2, 2, 1, 333, 256, func(p *P) { p.DType = dtype.Float32 }, 332, 17),
		problem(6, 2, 4, 200, 96, nil, 100, 196, 0),
		problem(4, 4, 8, 128, 80, func(p *P) { p.DType = dtype.Float32 }, 120, 3),
		problem(12, 1, 1, 512, 40, nil, 511, 64),
		problem(4, 2, 3, 256, 64, func(p *P) { p.NewKeys, p.Causal = 0, false }, 256, 3, 0),
		problem(4, 2, 5, 256, 64, func(p *P) { p.NewKeys = 0 }, 256, 2, 0),
		problem(4, 2, 2, 256, 64, func(p *P) { p.PageSize, p.Pages = 16, 64 }, 254, 30, 0),
		problem(4, 1, 1, 512, 128, func(p *P) { p.PageSize, p.Pages, p.DType = 8, 200, dtype.BFloat16 }, 511, 8, 100),
		problem(4, 1, 1, 512, 64, func(p *P) { p.PageSize, p.Pages = 256, 7 }, 511, 255, 256),
		problem(4, 2, 1, 128, 64, func(p *P) { p.CacheRows = 5 }, 127, 3, 64),
		problem(4, 2, 2, 400, 64, func(p *P) { p.Window = attention.Window{On: true, Left: 50} }, 398, 20, 0),
		problem(4, 2, 1, 400, 64, func(p *P) { p.Softcap = 3 }, 399, 20),
		problem(4, 2, 2, 400, 64, func(p *P) { p.ALiBi = attention.ALiBiPerHead }, 398, 20),
		problem(4, 2, 2, 400, 64, func(p *P) { p.ALiBi = attention.ALiBiPerBatchHead }, 398, 20),
		problem(4, 2, 2, 100, 64, func(p *P) { p.Bias = attention.Bias{On: true, DType: dtype.Float32, Heads: true, Rows: true} }, 98, 20),
		problem(4, 2, 2, 100, 64, func(p *P) { p.Bias = attention.Bias{On: true, DType: dtype.Float16, Batch: true} }, 98, 20),
		problem(4, 2, 1, 300, 64, func(p *P) { p.Sinks = true }, 299, 0),
		problem(4, 2, 1, 300, 64, func(p *P) { p.Sinks, p.NewKeys = true, 0 }, 299, 0),
		problem(4, 2, 1, 300, 64, func(p *P) { p.LeftPad = true }, 299, 20, 0),
		problem(4, 2, 7, 300, 64, func(p *P) { p.Tree, p.Causal = true, false }, 293, 20, 0),
		problem(2, 1, 64, 300, 64, func(p *P) { p.Tree, p.Causal = true, false }, 236, 20, 0),
		problem(4, 2, 1, 300, 64, func(p *P) { p.ValueDim = 128 }, 299, 20),
		problem(4, 2, 1, 300, 128, func(p *P) { p.ValueDim = 40 }, 299, 20),
		problem(4, 2, 1, 300, 72, func(p *P) { p.Scale = -0.3 }, 299, 20),
		problem(4, 2, 2, 512, 64, func(p *P) {
			p.PageSize, p.Pages, p.Sinks, p.Softcap, p.LeftPad = 32, 100, true, 20, true
			p.Window = attention.Window{On: true, Left: 200, Right: attention.Unlimited}
			p.ALiBi = attention.ALiBiPerBatchHead
			p.Bias = attention.Bias{On: true, DType: dtype.Float32, Heads: true}
			p.ValueDim = 32
		}, 500, 33, 0, 100),
	}
}

// cache8Cases are those of decodeCases that a cache of 8 bits can have, in both formats. Software has,
// unless there is time, one with every feature that changes scores and those without: scores do not know
// what a key was stored as, and each feature is another kernel.
func cache8Cases(dev *vk.Device) (list []decodeCase) {
	for _, c := range decodeCases() {
		scores := c.Window.On || c.Softcap != 0 || c.ALiBi != attention.ALiBiOff || c.Bias.On || c.Sinks || c.LeftPad || c.Tree
		if scores && c.PageSize == 0 && !vktest.Thorough(dev) {
			continue
		}
		for _, c.Cache = range []attention.CacheFormat{attention.CacheE4M3, attention.CacheQ8_0} {
			if c.DType == dtype.Float32 {
				c.DType = dtype.BFloat16
			}
			if c.Validate() == nil {
				list = append(list, c)
			}
		}
	}
	return list
}

// TestDecode compares decoding with float64.
func TestDecode(t *testing.T) {
	dev := vktest.Open(t)
	for _, c := range slices.Concat(decodeCases(), cache8Cases(dev)) {
		t.Run(fmt.Sprintf("%v/lens=%v", c.DecodeProblem, c.lens), func(t *testing.T) { checkDecode(t, dev, c, nil) })
	}
}

// TestDecodeScalar is TestDecode on the path that every device has, where TestDecode took another one.
func TestDecodeScalar(t *testing.T) {
	dev := vktest.Open(t)
	for _, c := range slices.Concat(decodeCases(), cache8Cases(dev)) {
		t.Run(fmt.Sprintf("%v/lens=%v", c.DecodeProblem, c.lens), func(t *testing.T) {
			plan, err := attention.ChooseDecode(dev.Caps(), c.DecodeProblem, attention.Options{Impl: attention.Scalar})
			require.NoError(t, err)
			taken, err := attention.ChooseDecode(dev.Caps(), c.DecodeProblem, attention.Options{})
			require.NoError(t, err)
			if taken.Decode == plan.Decode {
				t.Skip("TestDecode has it")
			}
			checkDecode(t, dev, c, &plan.Decode)
		})
	}
}

// TestDecodeConfigs is TestDecode with every feasible way to divide the work. Software has, unless there is
// time, those in which any two choices of a kernel meet.
func TestDecodeConfigs(t *testing.T) {
	dev := vktest.Open(t)
	type division struct {
		decodeCase
		attention.DecodeConfig
	}
	var all []division
	add := func(config attention.DecodeConfig) {
		for _, cache := range []attention.CacheFormat{attention.CacheSame, attention.CacheE4M3, attention.CacheQ8_0} {
			c := decodeCases()[4]
			c.Cache = cache
			if config.Feasible(dev.Caps(), c.DecodeProblem) == nil {
				all = append(all, division{c, config})
			}
		}
	}
	for _, groups := range []int{1, 3, 17, 100} {
		for n := 1; n <= 8; n *= 2 {
			add(attention.DecodeConfig{Impl: attention.Scalar, Rows: n, Subgroups: 1 + (n+groups)%4, Groups: groups})
		}
		for _, rows := range []int{8, 16, 32} {
			for _, n := range []int{1, 2, 4, 8, 12} {
				add(attention.DecodeConfig{Impl: attention.CoopMat, Rows: rows, Subgroups: n, Groups: groups})
			}
		}
	}
	if !vktest.Thorough(dev) {
		all = cover.Pairs(all, func(x division) []any { return []any{x.Impl, x.Rows, x.Subgroups, x.Cache} }, func(x division) []any { return []any{x.Groups} })
	}
	for _, x := range all {
		t.Run(fmt.Sprintf("%v/%v", x.DecodeConfig, x.Cache), func(t *testing.T) { checkDecode(t, dev, x.decodeCase, &x.DecodeConfig) })
	}
}

// TestDecodeInfinite has an infinite value: its column of O is infinite or NaN in the rows that see it and
// may be NaN in those that share its key, where one more column may be NaN; all else has the bits that it has
// without it.
func TestDecodeInfinite(t *testing.T) {
	dev := vktest.Open(t)
	for _, impl := range []attention.Impl{attention.CoopMat, attention.Scalar} {
		for _, format := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
			for _, dim := range []int{64, 96, 128, 256} {
				c := decodeCase{attention.DecodeProblem{Problem: attention.Problem{
					Batch: 2, NumHeads: 8, NumKVHeads: 2, SeqQ: 2, SeqKV: 256, HeadDim: dim, DType: format, Causal: true,
				}}, []int{200, 90}}
				t.Run(fmt.Sprintf("%v/%v/%v", impl, format, dim), func(t *testing.T) {
					plan, err := attention.ChooseDecode(dev.Caps(), c.DecodeProblem, attention.Options{Impl: impl})
					if impl == attention.CoopMat && errors.Is(err, vk.ErrUnsupported) {
						t.Skip("not NVIDIA's matrices")
					}
					require.NoError(t, err)
					d := newDecodeData(rand.New(rand.NewPCG(3, uint64(dim))), &c)
					finite, _, _ := newDecodeRun(t, dev, &c, d, &plan.Decode).run(t)
					for _, at := range []struct{ key, column, from int }{{7, 3, 0}, {199, dim - 1, 1}} { // from: the first query that sees the key
						old := d.v[at.key*dim+at.column]
						d.v[at.key*dim+at.column] = float32(math.Inf(1))
						o, _, _ := newDecodeRun(t, dev, &c, d, &plan.Decode).run(t)
						d.v[at.key*dim+at.column] = old
						checkInfinite(t, &c, at.column, at.from, finite, o)
					}
				})
			}
		}
	}
}

// checkInfinite compares O with what it is without an infinite value in a column of the first key head.
func checkInfinite(t *testing.T, c *decodeCase, column, from int, finite, o []float32) {
	isNaN := func(x float32) bool { return math.IsNaN(float64(x)) }
	for row := range len(o) / c.HeadDim {
		shares := row/c.SeqQ < c.NumHeads/c.NumKVHeads
		sees := shares && row%c.SeqQ >= from
		others := 0
		for e := range c.HeadDim {
			x, want := o[row*c.HeadDim+e], finite[row*c.HeadDim+e]
			switch {
			case sees && e == column:
				require.True(t, isNaN(x) || math.IsInf(float64(x), 1), "row %d, the column of the infinite value: %v", row, x)
			case math.Float32bits(x) == math.Float32bits(want):
			default:
				require.True(t, shares && isNaN(x), "row %d, column %d = %v, without the infinite value %v", row, e, x, want)
				if e != column {
					others++
				}
			}
		}
		require.LessOrEqual(t, others, 1, "row %d: columns that are NaN beside that of the infinite value", row)
	}
}
