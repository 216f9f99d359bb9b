package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// A decodeCase is a problem with the lengths of its sequences.
type decodeCase struct {
	attention.DecodeProblem
	lens []int // SeqLens
}

// decodeData is what a case has on the host, as float32 that the format holds.
type decodeData struct {
	q, k, v             []float32 // of contiguous tensors of the problem's shapes
	table, rows, pad    []int32
	tree                []int32
	bias, slopes, sinks []float32
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
	seen := make([]bool, len(d.k))
	for b := range p.Batch {
		for h := range p.NumKVHeads {
			for j := range c.lens[b] + p.NewKeys {
				at := d.keyAt(p, b, h, j) * p.HeadDim
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
	return d
}

// keyAt returns the row of a key in a contiguous cache.
func (d *decodeData) keyAt(p *attention.DecodeProblem, b, h, j int) int {
	if p.PageSize > 0 {
		page := int(d.table[b*(p.SeqKV/p.PageSize)+j/p.PageSize])
		return (page*p.NumKVHeads+h)*p.PageSize + j%p.PageSize
	}
	if p.CacheRows > 0 {
		b = int(d.rows[b])
	}
	return (b*p.NumKVHeads+h)*p.SeqKV + j
}

// want computes O and LSE of a case in float64.
func (d *decodeData) want(c *decodeCase) (o, lse []float64) {
	p := &c.DecodeProblem
	dv := p.ValueHeadDim()
	for b := range p.Batch {
		n := c.lens[b] + p.NewKeys
		for h := range p.NumHeads {
			kv := h / (p.NumHeads / p.NumKVHeads)
			for i := range p.SeqQ {
				q := d.q[((b*p.NumHeads+h)*p.SeqQ+i)*p.HeadDim:][:p.HeadDim]
				top := math.Inf(-1)
				scores := make([]float64, n)
				for j := range n {
					scores[j] = d.score(c, b, h, i, j, n, q, d.k[d.keyAt(p, b, kv, j)*p.HeadDim:])
					top = max(top, scores[j])
				}
				if p.Sinks {
					top = max(top, float64(d.sinks[h]))
				}
				sum, row := 0.0, make([]float64, dv)
				for j, s := range scores {
					if math.IsInf(s, -1) {
						continue
					}
					w := math.Exp(s - top)
					sum += w
					v := d.v[d.keyAt(p, b, kv, j)*dv:]
					for e := range row {
						row[e] += w * float64(v[e])
					}
				}
				if p.Sinks {
					sum += math.Exp(float64(d.sinks[h]) - top)
				}
				for e := range row {
					if sum > 0 {
						row[e] /= sum
					}
				}
				o = append(o, row...)
				if sum > 0 {
					lse = append(lse, top+math.Log(sum))
				} else {
					lse = append(lse, math.Inf(-1))
				}
			}
		}
	}
	return o, lse
}

// score is the score of query i and key j of n; -Inf where the query does not see it.
func (d *decodeData) score(c *decodeCase, b, h, i, j, n int, q, k []float32) float64 {
	p := &c.DecodeProblem
	at := n - p.SeqQ + i
	seen := !p.Causal || j <= at
	if p.Window.On && p.Window.Left != attention.Unlimited {
		seen = seen && j >= at-p.Window.Left
	}
	if p.LeftPad {
		seen = seen && j >= int(d.pad[b])
	}
	if new := j - (n - p.SeqQ); p.Tree && new >= 0 {
		seen = seen && d.tree[(b*p.SeqQ+i)*2+new/32]>>(new%32)&1 != 0
	}
	if !seen {
		return math.Inf(-1)
	}
	s := 0.0
	for e := range q {
		s += float64(q[e]) * float64(k[e])
	}
	s *= p.EffectiveScale()
	if p.Softcap != 0 {
		s = p.Softcap * math.Tanh(s/p.Softcap)
	}
	if p.Bias.On {
		shape := p.BiasShape()
		at := 0
		for axis, index := range []int{b, h, i, j} {
			at = at*shape[axis] + index%shape[axis]
		}
		s += float64(d.bias[at])
	}
	switch p.ALiBi {
	case attention.ALiBiPerHead:
		s -= float64(d.slopes[h]) * math.Abs(float64(at-j))
	case attention.ALiBiPerBatchHead:
		s -= float64(d.slopes[b*p.NumHeads+h]) * math.Abs(float64(at-j))
	}
	return s
}

// A decodeRun is a case on a device.
type decodeRun struct {
	t attention.DecodeTensors
	c *vk.Cmd
}

func newDecodeRun(t *testing.T, dev *vk.Device, c *decodeCase, d *decodeData, config *attention.DecodeConfig) *decodeRun {
	p := &c.DecodeProblem
	floats := func(name string, f dtype.DType, shape []int, data []float32) vk.Tensor {
		x, err := dev.NewTensor(name, f, shape...)
		require.NoError(t, err)
		t.Cleanup(x.Close)
		if data != nil {
			require.NoError(t, x.Upload(t.Context(), data))
		}
		return x
	}
	ints := func(name string, shape []int, data []int32) vk.Tensor {
		x := floats(name, dtype.Int32, shape, nil)
		require.NoError(t, x.UploadInts(t.Context(), data))
		return x
	}
	lens := make([]int32, p.Batch)
	for b := range lens {
		lens[b] = int32(c.lens[b])
	}
	x := attention.DecodeTensors{
		Q: floats("q", p.DType, p.QShape(), d.q), K: floats("k", p.DType, p.KShape(), d.k), V: floats("v", p.DType, p.VShape(), d.v),
		O: floats("o", p.DType, p.OShape(), nil), LSE: floats("lse", dtype.Float32, p.LSEShape(), nil),
		SeqLens: ints("seq_lens", p.SeqLensShape(), lens), State: ints("state", p.StateShape(), make([]int32, size(p.StateShape()))),
	}
	if p.PageSize > 0 {
		x.BlockTable = ints("block_table", p.BlockTableShape(), d.table)
	}
	if p.CacheRows > 0 {
		x.CacheBatchIdx = ints("cache_batch_idx", p.SeqLensShape(), d.rows)
	}
	if p.LeftPad {
		x.LeftPad = ints("left_pad", p.SeqLensShape(), d.pad)
	}
	if p.Tree {
		x.TreeMask = ints("tree_mask", p.TreeMaskShape(), d.tree)
	}
	if p.Bias.On {
		x.Bias = floats("bias", p.Bias.DType, p.BiasShape(), d.bias)
	}
	if p.ALiBi != attention.ALiBiOff {
		x.ALiBiSlopes = floats("alibi_slopes", dtype.Float32, p.SlopesShape(), d.slopes)
	}
	if p.Sinks {
		x.Sinks = floats("sinks", dtype.Float32, p.SinksShape(), d.sinks)
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
	wantO, wantLSE := d.want(&c)
	bound := map[dtype.DType]float64{dtype.Float16: 0x1p-11, dtype.BFloat16: 0x1p-8, dtype.Float32: 0x1p-24}[c.DType] + 64*0x1p-24
	for i := range wantO {
		if x := math.Abs(float64(o[i]) - wantO[i]); !(x <= bound*(math.Abs(wantO[i])+1)) {
			t.Fatalf("o[%d] = %v, want %v", i, o[i], wantO[i])
		}
	}
	for i := range wantLSE {
		if float64(lse[i]) != wantLSE[i] && !(math.Abs(float64(lse[i])-wantLSE[i]) <= 1e-5*(math.Abs(wantLSE[i])+4)) {
			t.Fatalf("lse[%d] = %v, want %v", i, lse[i], wantLSE[i])
		}
	}
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

// TestDecode compares decoding with float64.
func TestDecode(t *testing.T) {
	dev := vktest.Open(t)
	for _, c := range decodeCases() {
		t.Run(fmt.Sprintf("%v/lens=%v", c.DecodeProblem, c.lens), func(t *testing.T) { checkDecode(t, dev, c, nil) })
	}
}

// TestDecodeScalar is TestDecode on the path that every device has.
func TestDecodeScalar(t *testing.T) {
	dev := vktest.Open(t)
	for _, c := range decodeCases() {
		t.Run(fmt.Sprintf("%v/lens=%v", c.DecodeProblem, c.lens), func(t *testing.T) {
			plan, err := attention.ChooseDecode(dev.Caps(), c.DecodeProblem, attention.Options{Impl: attention.Scalar})
			require.NoError(t, err)
			checkDecode(t, dev, c, &plan.Decode)
		})
	}
}

// TestDecodeConfigs is TestDecode with every feasible way to divide the work.
func TestDecodeConfigs(t *testing.T) {
	dev := vktest.Open(t)
	c := decodeCases()[4]
	run := func(config attention.DecodeConfig) {
		if config.Feasible(dev.Caps(), c.DecodeProblem) == nil {
			t.Run(config.String(), func(t *testing.T) { checkDecode(t, dev, c, &config) })
		}
	}
	for _, groups := range []int{1, 3, 17, 100} {
		for n := 1; n <= 8; n *= 2 {
			run(attention.DecodeConfig{Impl: attention.Scalar, Rows: n, Keys: 4, Subgroups: 1 + (n+groups)%4, Groups: groups})
			for tiles := 1; tiles <= 2; tiles++ {
				run(attention.DecodeConfig{Impl: attention.CoopMat, Rows: 16 * tiles, Keys: 16, Subgroups: n, Groups: groups})
			}
		}
	}
}
