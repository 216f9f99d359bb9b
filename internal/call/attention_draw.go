package call

import (
	"math/rand/v2"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// An attentionDraw draws a problem.
type attentionDraw struct {
	*Attention
	space Space
	rng   *rand.Rand

	// Properties of the family that sizes and data depend on.
	matrix bool // a path of matrices
	odd    bool // Q and K are aligned to no more than an element
	decode bool // few rows, many keys
	splits bool // keys are divided among workgroups
}

// drawAttention draws a call of a pass of attention.
func drawAttention(family, rng *rand.Rand, space Space) Call {
	d := attentionDraw{Attention: new(Attention), space: space, rng: rng}
	if d.space.Work == 0 {
		d.space.Work = 1e8
	}
	d.path(family)
	d.HeadDim = d.dim(family)
	d.features(family)
	d.shape(family)
	d.config(family)
	d.sizes()
	d.layouts()
	d.values()
	return d.Attention
}

// path draws the pass, the path and the format.
func (d *attentionDraw) path(family *rand.Rand) {
	d.Backward = chance(family, 2)
	// The weights of the paths. Auto is the fastest that there is.
	name, ok := d.space.Impl(family, "coopmat2", "coopmat2", "coopmat2", "coopmat", "coopmat", "scalar", "scalar", "unfused", "auto", "auto")
	if !ok {
		name = "auto"
	}
	d.Impl, _ = attention.ParseImpl(name)
	t, ok := d.space.DType(family, dtype.Float16, dtype.BFloat16, dtype.Float32)
	if !ok {
		t = dtype.Float16
	}
	p := &d.Problem
	p.DType = t
	d.matrix = d.Impl != attention.Scalar && d.Impl != attention.Unfused
	if !d.space.Soft || !d.matrix {
		return
	}
	// No software driver has matrices of bfloat16, and float32 on matrices is slow there.
	if half := slices.Contains(d.space.DTypes, dtype.Float16) || d.space.DTypes == nil; half && (t == dtype.BFloat16 || !chance(family, 4)) {
		p.DType = dtype.Float16
	}
	if d.Impl == attention.Auto && p.DType != dtype.Float16 {
		d.matrix = false
	}
}

// dim draws a head_dim or value_dim: the usual ones more often than not.
func (d *attentionDraw) dim(family *rand.Rand) int {
	switch {
	case d.space.Soft && d.matrix && d.Problem.DType == dtype.Float32:
		return 8 * (1 + family.IntN(2))
	case d.space.Soft && d.matrix:
		return 8 * (1 + family.IntN(3))
	case d.space.Soft:
		return 8 * (1 + family.IntN(9))
	case chance(family, 2):
		return one(family, 64, 64, 128, 128, 256, 32, 96)
	}
	return 8 * (1 + family.IntN(attention.MaxHeadDim/8))
}

// numFeatures is how many features attentionDraw.feature knows.
const numFeatures = 9

// features draws the features that are on: none, one, two or several.
func (d *attentionDraw) features(family *rand.Rand) {
	p := &d.Problem
	p.Causal = chance(family, 2)
	n := 0
	switch family.IntN(6) {
	case 0:
	case 1, 2:
		n = 1
	case 3, 4:
		n = 2
	default:
		n = 3 + family.IntN(4)
	}
	for _, x := range family.Perm(numFeatures)[:n] {
		d.feature(family, x)
	}
	if (p.Causal || p.Window.On || p.ALiBi != attention.ALiBiOff) && chance(family, 4) {
		p.CausalAlign = attention.TopLeft
	}
	switch quant := chance(family, 2) && !d.Backward && p.DType != dtype.Float32; {
	case quant && (d.Impl == attention.Auto || d.Impl == attention.Scalar):
		p.Quant = one(family, dtype.QuantInt8, dtype.QuantInt8, dtype.QuantE4M3)
	case quant && d.matrix && chance(family, 3):
		p.Quant = dtype.QuantInt8
	}
}

// feature turns on a feature and draws the choices that kernels are compiled for.
func (d *attentionDraw) feature(family *rand.Rand, number int) {
	p := &d.Problem
	switch number {
	case 0:
		for p.ValueDim = d.dim(family); p.ValueDim == p.HeadDim; {
			p.ValueDim = p.HeadDim%24 + 8 // another multiple of 8
		}
	case 1: // sides that are 0 here are sizes
		p.Window = attention.Window{On: true}
		switch family.IntN(4) {
		case 0:
			p.Window.Left = attention.Unlimited
		case 1:
			p.Window.Right = attention.Unlimited
		}
	case 2:
		p.Softcap = 1
	case 3:
		p.ALiBi = one(family, attention.ALiBiPerHead, attention.ALiBiPerBatchHead)
	case 4:
		p.Bias = attention.Bias{On: true, DType: one(family, p.DType, dtype.Float32), Batch: chance(family, 2), Heads: chance(family, 2), Rows: chance(family, 2)}
	case 5:
		p.KeyMask = true
	case 6:
		p.Sinks = true
	case 7:
		p.Varlen.On = true
	case 8:
		p.Dropout = attention.Dropout{P: 0.5, Seeded: true}
	}
}

// shape draws the other choices that kernels are compiled for, and the class of sizes.
func (d *attentionDraw) shape(family *rand.Rand) {
	d.odd = chance(family, 3)
	d.decode = chance(family, 6)
	d.NoLSE = !d.Backward && chance(family, 4)
	d.DLSE = d.Backward && chance(family, 3)
	d.splits = !d.Backward && d.Impl != attention.Unfused && d.Impl != attention.Auto && d.Problem.Plain() && chance(family, 3)
}

// config draws a configuration that devices like typicalCaps can run.
func (d *attentionDraw) config(family *rand.Rand) {
	if d.Impl == attention.Auto && d.decode && !d.Backward && d.Problem.Quant == dtype.NoQuant && chance(family, 2) {
		path := attention.Scalar
		if !d.space.Soft && d.Problem.DType != dtype.Float32 && chance(family, 2) {
			path = attention.CoopMat
		}
		d.DecodeConfig = drawDecodeConfig(family, path, attention.DecodeProblem{Problem: d.Problem}, d.space)
		return
	}
	// Only plain problems have kernels that divide keys or compute all gradients at once.
	forced := chance(family, 2) || d.splits || d.Problem.Plain() && chance(family, 2)
	if d.Impl == attention.Auto || !forced {
		return
	}
	caps, p := TypicalCaps(d.space.Soft), d.typical()
	if d.Backward {
		d.BackwardConfig = d.backwardConfig(family, caps, p)
		return
	}
	if d.Impl == attention.CoopMat2 && p.Plain() && p.DType != dtype.Float32 && p.Quant == dtype.NoQuant && chance(family, 3) {
		nvidia := *caps
		nvidia.DriverID = TypicalCaps(false).DriverID // the kernel knows where it keeps matrices
		if c := d.stripes(family); c.Feasible(&nvidia, p) == nil {
			d.Config = &c
		}
		return
	}
	space := table.SpaceOf("attention", kit.Forward, p)
	all, err := space.Candidates(caps, d.Impl.String())
	if err != nil {
		return
	}
	c := all[family.IntN(len(all))].(attention.Config)
	c.Splits = 0
	if some := space.Variants(caps, c); chance(family, 2) && len(some) > 0 {
		c = some[family.IntN(len(some))].(attention.Config)
	}
	c.Splits = 0 // a size
	if d.matrix && chance(family, 8) {
		c.Detour = true
	}
	if d.space.Soft && d.matrix {
		// What a software driver compiles in seconds.
		c.Subgroups, c.RowTiles, c.BlockN, c.LoadAhead, c.Prefetch, c.KeysFirst = min(c.Subgroups, 2), 1, 8, 0, false, false
	}
	if c.Feasible(caps, p) == nil {
		d.Config = &c
	}
}

// stripes draws a configuration whose subgroups divide the keys.
func (d *attentionDraw) stripes(family *rand.Rand) attention.Config {
	c := attention.Config{Impl: d.Impl, Subgroups: one(family, 2, 4, 8, 8, 16), Stripes: one(family, 2, 2, 4, 8), RowTiles: one(family, 1, 1, 2), BlockN: one(family, 16, 32, 64), Detour: chance(family, 8)}
	if d.space.Soft { // what a software driver compiles in seconds
		c = attention.Config{Impl: d.Impl, Subgroups: 2, Stripes: 2, RowTiles: 1, BlockN: one(family, 8, 16), Detour: true}
	}
	return c
}

// typical returns a problem of the family that fills a device.
func (d *attentionDraw) typical() attention.Problem {
	p := d.Problem
	p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV = 4, 16, 16, 2048, 2048
	if p.Varlen.On {
		p.Varlen.TotalQ, p.Varlen.TotalKV = p.SeqQ, p.SeqKV
	}
	return p
}

// backwardConfig draws a configuration of the backward pass: tiles of two kernels, or, if the path
// has them, one kernel for all gradients, or stored weights.
func (d *attentionDraw) backwardConfig(family *rand.Rand, caps *vk.Caps, p attention.Problem) *attention.BackwardConfig {
	kind := 0
	switch {
	case !d.matrix || p.DType == dtype.Float32:
	case p.Plain():
		kind = family.IntN(3)
	default:
		kind = 2 * family.IntN(2) // no kernel computes all gradients at once
	}
	start, err := attention.Choose(caps, p, kit.Backward, attention.Options{Impl: d.Impl})
	if err != nil {
		return nil
	}
	for range 30 {
		c := attention.BackwardConfig{Impl: d.Impl}
		switch {
		case kind == 1:
			c.Fused, p.SeqKV = d.matrixTile(family), 1 // sizes draws the keys of a block
		case kind == 2:
			c.DQ, c.Stored, c.Chunk = d.matrixTile(family), d.productTile(family), one(family, 0, 0, 1, 2)
		case d.matrix:
			c.DKV, c.DQ = d.matrixTile(family), d.matrixTile(family)
		default:
			c.DKV, c.DQ = scalarTile(family), scalarTile(family)
		}
		if c.Feasible(caps, p) == nil {
			return &c
		}
	}
	return &start.Backward
}

// matrixTile draws a tile of a matrix path.
func (d *attentionDraw) matrixTile(family *rand.Rand) attention.BackwardTile {
	if d.space.Soft {
		return attention.BackwardTile{Subgroups: 1 + family.IntN(2), RowTiles: 1, BlockN: 8, PeelMask: chance(family, 2)}
	}
	return attention.BackwardTile{
		Subgroups: one(family, 1, 2, 4, 8), RowTiles: one(family, 1, 1, 2), BlockN: one(family, 16, 32, 32, 48, 64, 128),
		Prefetch: chance(family, 2), PeelMask: chance(family, 2), LoadAhead: one(family, 0, 0, 2, 4), Detour: chance(family, 8),
	}
}

// productTile draws a tile of the products of stored weights.
func (d *attentionDraw) productTile(family *rand.Rand) attention.BackwardTile {
	if d.space.Soft {
		return attention.BackwardTile{Subgroups: 1 + family.IntN(2), RowTiles: 1, BlockN: 8}
	}
	return attention.BackwardTile{Subgroups: one(family, 1, 2, 4, 8), RowTiles: one(family, 1, 2, 2, 4), BlockN: one(family, 16, 32, 32, 64), LoadAhead: one(family, 0, 0, 2)}
}

// scalarTile draws a tile of the scalar and the unfused path.
func scalarTile(family *rand.Rand) attention.BackwardTile {
	threads, x := one(family, 64, 128), one(family, 8, 16)
	return attention.BackwardTile{
		Threads: threads, ThreadsX: x, BlockM: threads / x * one(family, 1, 2, 4), BlockN: x * one(family, 1, 2, 4),
		Depth: one(family, 8, 16, 32), StageRows: one(family, 4, 8),
	}
}

// layouts draws the layouts of tensors: one for all, or one for each.
func (d *attentionDraw) layouts() {
	letters := AlignedLayouts
	if d.odd {
		letters += OddLayouts
	}
	letter := func(of string) string { return string(of[d.rng.IntN(len(of))]) }
	same, own := letter(letters), d.rng.IntN(3) > 0
	const tensors = 6
	for range tensors {
		if own {
			same = letter(letters)
		}
		d.Layout += same
	}
	if d.odd {
		d.Layout = letter(OddLayouts) + letter(OddLayouts) + d.Layout[2:]
	}
}
