package attention

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// Forward computes softmax attention for every batch and head,
//
//	S   = Scale * Q * Kᵀ, then the features of p: see Problem
//	P   = softmax(S) over the keys that a row sees
//	O   = P * V
//	LSE = log(sum(exp(S))) of each row, natural logarithm
//
// Only the unfused path writes S and P to memory.
//
// Q and O are (batch, num_heads, seq_q, head_dim), K and V are (batch, num_kv_heads, seq_kv,
// head_dim), with any strides and a contiguous last axis, all of p.DType. Sums are float32. LSE is
// (batch, num_heads, seq_q) float32; the zero Tensor leaves it out. Query head h reads key head h /
// (num_heads/num_kv_heads). Strides and offsets that are multiples of 8 elements are fastest. The
// memory of O and of LSE, from the first to the last element with all gaps, must not overlap the
// memory of another tensor.
//
// If p.Causal, p.CausalAlign aligns the mask. For seq_q = 2 and seq_kv = 5 the keys seen are
//
//	bottom-right  1 1 1 1 0    top-left  1 0 0 0 0
//	              1 1 1 1 1              1 1 0 0 0
//
// A row that sees no key has O = 0 and LSE = -Inf, or with Sinks LSE = the sink of its head.
//
// The fields of Problem describe the features and draw their masks; Tensors has their tensors. With
// Varlen all tensors are packed. Keys and values that masks hide from every row may be anything,
// NaN too.
//
// For a few queries with many keys Forward takes the kernels of Decode where they are faster,
// unless opt forces a path; Choose says which.
//
// Forward records into c and returns; O and LSE are valid once c has completed. The first call that
// needs a kernel compiles it; later calls find it in the device's cache.
//
// The error wraps vk.ErrUnsupported if no path on the device handles p, and names the argument if a
// tensor does not fit p.
//
// The algorithm is Algorithm 1 of Dao, FlashAttention-2 (arXiv:2307.08691).
func Forward(c *vk.Cmd, t Tensors, p Problem, opt Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	d := c.Device()
	plan, err := planForward(d.Caps(), &p, &opt, askDevice(d))
	if err != nil {
		return err
	}
	if err := checkForward(&t, &p); err != nil {
		return err
	}
	if plan.Decode != (DecodeConfig{}) {
		return forwardDecode(c, &t, &p, plan.Decode)
	}
	vk.Narrow(t.all()...)
	f := forward{c: c, o: t.O, lse: t.LSE, q: t.Q, k: t.K, v: t.V, p: p, tensors: &t, config: plan.Config}
	return f.record()
}

// forward holds the arguments of a call. Tensors of a Varlen are unpacked, and heads that share
// keys are packed.
type forward struct {
	c               *vk.Cmd
	o, lse, q, k, v vk.Tensor
	p               Problem
	tensors         *Tensors // of features
	config          Config
	quant           quantTensors // with Quant
}

// record records the kernels.
func (f *forward) record() error {
	p := &f.p
	if p.Varlen.On {
		for _, x := range []*vk.Tensor{&f.o, &f.lse, &f.q, &f.k, &f.v} {
			*x = unpack(*x, p)
		}
	}
	if p.Plain() && p.Causal && p.CausalAlign == TopLeft {
		p.SeqKV = min(p.SeqKV, p.SeqQ) // no row sees the others: a NaN in V would not become 0 by a weight of 0
	}
	if f.config.Impl == Unfused {
		return f.unfused()
	}
	if p.Quant != dtype.NoQuant {
		if err := f.quantize(); err != nil { // before heads are packed: it reads some rows of each
			return err
		}
	}
	if packs(p) {
		f.o, f.lse, f.q, f.p = packHeads(f.o, p), packHeads(f.lse, p), packHeads(f.q, p), packProblem(*p)
	}
	if f.config.Splits > 1 {
		return f.splits()
	}
	return f.fused()
}

// fused records the fused kernel of the configuration. With Splits above 1, o and lse are the
// partial results of shaders/lib/split_kv.glsl.
func (f *forward) fused() error {
	config, p := &f.config, &f.p
	if config.Impl == Scalar {
		spec := fwdScalarSpec{
			tileSpec: tileSpec{config.blockSpec(), uint32(config.Depth)}, ValueRows: uint32(config.ValueRows), HeadDim: uint32(p.HeadDim),
			Causal: p.Causal, Aligned: argument.Aligned(4, f.q, f.k, f.v), WriteLSE: !f.lse.IsZero(), SplitKV: config.Splits > 1,
		}
		if p.Quant != dtype.NoQuant {
			return recordFwd(f, fwdScalarQuantSpec{spec, uint32(p.Quant)}, vk.KernelOptions{})
		}
		return recordFwd(f, spec, vk.KernelOptions{})
	}
	d := f.c.Device()
	spec, err := f.matrixSpec(d)
	if err != nil {
		return err
	}
	if p.Quant != dtype.NoQuant {
		return recordFwd(f, fwdMatrixQuantSpec{spec, f.quant.depth}, matrixKernelOptions(d))
	}
	if config.Stripes == 0 {
		return recordFwd(f, spec, matrixKernelOptions(d))
	}
	if !config.Detour {
		if err := asksQuads(d, *config, config.Impl, p.DType); err != nil {
			return err
		}
	}
	return recordFwd(f, fwdDirectSpec{
		matrixSpec: spec.matrixSpec, SameLayout: spec.SameLayout, fwdTileSpec: spec.fwdTileSpec,
		Stripes: uint32(config.Stripes), Quads: !config.Detour,
	}, matrixKernelOptions(d))
}

// recordFwd records the fused kernel with a specialization over all blocks of rows, splits of their
// keys, heads and batches, in the order of shaders/lib/order.glsl. A dispatch takes as many batches
// as the device allows.
func recordFwd[S any](f *forward, spec S, options vk.KernelOptions) error {
	c, p, config := f.c, &f.p, &f.config
	caps := c.Device().Caps()
	limit := caps.MaxWorkgroupCount
	blockM := config.blockRows(caps, p.DType)
	splits := max(config.Splits, 1)
	blocks := (p.SeqQ + blockM - 1) / blockM * splits
	if blocks > int(limit[0]) {
		return unsupported("seq_q=%d makes %d blocks of rows, splits=%d counted in, more than the device's %d workgroups", p.SeqQ, blocks, splits, limit[0])
	}
	if p.NumHeads > int(limit[1]) {
		return unsupported("num_heads=%d is more than the device's %d workgroups", p.NumHeads, limit[1])
	}
	kernel := newKernel[fwdParams](c, config.kernel(p), p.DType.Short(), p, spec, options)
	params := f.params(splits)
	tensors := []vk.Tensor{f.q, f.k, f.v, f.o, orElse(f.lse, f.o)} // every binding needs a tensor; the kernel does not touch it
	if p.Quant != dtype.NoQuant {
		params.QSign = 0 // it is in Q
		tensors = append(tensors, f.quant.qRows, f.quant.kScales)
	}
	if group := rowGroup(p, blocks, limit); group > 0 {
		params.GroupHeads = uint32(group)
		kernel.dispatch(c, vk.Groups{X: uint32(group), Y: uint32(blocks), Z: uint32(p.Batch * p.NumHeads / group)}, params, f.features(), tensors...)
		return c.Err()
	}
	f.overBatches(params, func(n uint32, params fwdParams, features *boundFeatures) {
		kernel.dispatch(c, vk.Groups{X: uint32(blocks), Y: uint32(p.NumHeads), Z: n}, params, features, tensors...)
	})
	return c.Err()
}

// features returns the arguments of features, nil for a plain problem.
func (f *forward) features() *boundFeatures {
	return newBoundFeatures(&f.p, f.tensors, f.v)
}

// overBatches calls dispatch for the batches, as many at a time as the device allows.
func (f *forward) overBatches(params fwdParams, dispatch func(n uint32, params fwdParams, features *boundFeatures)) {
	features := f.features()
	inSteps(f.c.Device(), f.p.Batch, func(first, n uint32) {
		dispatch(n, params, features)
		for _, x := range []*place{&params.Q, &params.K, &params.V, &params.O, &params.LSE} {
			x.skip(n)
		}
		features.skip(&f.p, first, n)
	})
}

// fwdParams is the push-constant block of lib/params_fwd.glsl.
type fwdParams struct {
	SeqQ        uint32  `glsl:"seq_q"`
	SeqKV       uint32  `glsl:"seq_kv"`
	HeadsPerKV  uint32  `glsl:"heads_per_kv"`
	NumHeads    uint32  `glsl:"num_heads"`
	GroupHeads  uint32  `glsl:"group_heads"`
	Splits      uint32  `glsl:"splits"`
	CausalShift int32   `glsl:"causal_shift"`
	ScaleLog2   float32 `glsl:"scale_log2"`
	QSign       uint32  `glsl:"q_sign"`
	qkvParams           // elements, like all that follow
	outParams
}

// log2e turns natural exponents into binary ones: exp(x) = exp2(x * log2e).
const log2e = 1 / math.Ln2

// params fills the block for all batches.
func (f *forward) params(splits int) fwdParams {
	p := &f.p
	scale := p.EffectiveScale() * log2e
	params := fwdParams{
		SeqQ: uint32(p.SeqQ), SeqKV: uint32(p.SeqKV),
		HeadsPerKV:  uint32(p.NumHeads / p.NumKVHeads),
		NumHeads:    uint32(p.NumHeads),
		Splits:      uint32(splits),
		CausalShift: int32(p.Mask().Shift),
		ScaleLog2:   float32(math.Abs(scale)),
		qkvParams:   newQKVParams(f.q, f.k, f.v),
		outParams:   newOutParams(f.o, f.lse),
	}
	if scale < 0 {
		params.QSign = 0x80008000 // -S = (-Q) * Kᵀ
	}
	return params
}

const (
	// groupBytes is the most memory that the heads of one group may walk over together, so that it
	// stays in a GPU's last-level cache.
	groupBytes = 16 << 20
	// maxGroup bounds the heads of a group, and so the search for their number.
	maxGroup = 256
)

// rowGroup returns how many heads take turns with their blocks of rows.
func rowGroup(p *Problem, blocks int, limit [3]uint32) int {
	return groupHeads(p, p.Batch*p.NumHeads, p.SeqKV, p.NumHeads/p.NumKVHeads, blocks, limit)
}

// groupHeads returns how many of the heads take turns with their blocks
// (shaders/lib/order.glsl): a divisor of all, or 0 for the order without groups. A block walks over
// up to seq rows of two tensors, the same for `sharing` heads. Without a causal mask all blocks are
// equally long, and head after head uses the cache best.
func groupHeads(p *Problem, heads, seq, sharing, blocks int, limit [3]uint32) int {
	if !p.Causal || blocks > int(limit[1]) {
		return 0
	}
	headBytes := 2 * float64(seq) * float64(p.HeadDim) * float64(p.DType.Size())
	most := groupBytes / headBytes * float64(sharing)
	for n := min(int(most), heads, maxGroup, int(limit[0])); n > 1; n-- {
		if heads%n == 0 && heads/n <= int(limit[2]) {
			return n
		}
	}
	return 0
}

// matrixSpec is lib/matrix_constants.glsl: how a workgroup has the matrices of a device.
type matrixSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	NumSubgroups  uint32 `glsl:"NUM_SUBGROUPS"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
	Length        uint32 `glsl:"LENGTH"`
	RowRun        uint32 `glsl:"ROW_RUN"`
	RowLanes      uint32 `glsl:"ROW_LANES"`
}

func newMatrixSpec(d *vk.Device, subgroups int, shape vk.CoopMatShape, layout *chips.MatrixLayout) matrixSpec {
	return matrixSpec{
		WorkgroupSize: uint32(subgroups) * d.Caps().SubgroupSize,
		NumSubgroups:  uint32(subgroups),
		MatM:          shape.M,
		MatN:          shape.N,
		Length:        uint32(layout.Length),
		RowRun:        uint32(layout.RowRun),
		RowLanes:      uint32(layout.RowLanes),
	}
}

// fwdTileSpec has the constants of a problem and its tiles for kernels on matrices.
type fwdTileSpec struct {
	RowTiles uint32 `glsl:"ROW_TILES"`
	BlockN   uint32 `glsl:"BLOCK_N"`
	HeadDim  uint32 `glsl:"HEAD_DIM"`
	Causal   bool   `glsl:"CAUSAL"`
	Aligned  bool   `glsl:"ALIGNED"`
	WriteLSE bool   `glsl:"WRITE_LSE"`
}

// fwdMatrixSpec is the specialization of attention_fwd_matrix.comp.
type fwdMatrixSpec struct {
	matrixSpec
	SameLayout bool `glsl:"SAME_LAYOUT"`
	Lockstep   bool `glsl:"LOCKSTEP"`
	fwdTileSpec
	Prefetch  bool   `glsl:"PREFETCH"`
	PeelMask  bool   `glsl:"PEEL_MASK"`
	LoadAhead uint32 `glsl:"LOAD_AHEAD"`
	SplitKV   bool   `glsl:"SPLIT_KV"`
	KeysFirst bool   `glsl:"KEYS_FIRST"`
}

// matrixSpec returns the specialization of a matrix path.
func (f *forward) matrixSpec(d *vk.Device) (fwdMatrixSpec, error) {
	p, config := &f.p, &f.config
	shape, layout, err := matrixLayout(d, config.Impl, p.DType, config.Detour)
	if err != nil {
		return fwdMatrixSpec{}, err
	}
	isAligned := argument.Aligned(8, f.q, f.k, f.v, f.o)
	if p.DType == dtype.Float32 {
		isAligned = argument.Aligned(4, f.k, f.v)
	}
	return fwdMatrixSpec{
		matrixSpec: newMatrixSpec(d, config.Subgroups, shape, &layout),
		SameLayout: layout.SameAsAcc,
		Lockstep:   chips.Lavapipe(d.Caps()),
		fwdTileSpec: fwdTileSpec{
			RowTiles: uint32(config.RowTiles),
			BlockN:   uint32(config.BlockN),
			HeadDim:  uint32(p.HeadDim),
			Causal:   p.Causal,
			Aligned:  isAligned,
			WriteLSE: !f.lse.IsZero(),
		},
		Prefetch:  config.Prefetch,
		PeelMask:  config.PeelMask,
		LoadAhead: uint32(config.LoadAhead),
		SplitKV:   config.Splits > 1,
		KeysFirst: config.KeysFirst,
	}, nil
}

// matrixLayout returns the matrices of a path for tensors of a format, and their layout: which
// invocation holds which element. With the detour the layout counts as unknown.
func matrixLayout(d *vk.Device, impl Impl, t dtype.DType, detour bool) (shape vk.CoopMatShape, layout chips.MatrixLayout, err error) {
	if shape, err = matrixShape(d.Caps(), impl, t); err != nil {
		return shape, layout, err
	}
	if t == dtype.Float32 {
		t = dtype.Float16
	}
	if layout, err = chips.LayoutOf(d, t, shape); err == nil && detour {
		layout.Forget()
	}
	return shape, layout, err
}

// asksQuads returns an error that begins with of, unless the device keeps matrices of a path and format in
// NVIDIA's order. Only the device can tell (chips.AsksQuads).
func asksQuads(d *vk.Device, of any, impl Impl, t dtype.DType) error {
	shape, err := matrixShape(d.Caps(), impl, t)
	if err != nil {
		return err
	}
	quads, err := chips.AsksQuads(d, t, shape)
	if err == nil && !quads {
		err = unsupported("%v: the driver does not keep elements of matrices where NVIDIA's 580 does", of)
	}
	return err
}

func matrixKernelOptions(d *vk.Device) vk.KernelOptions { return chips.MatrixOptions(d.Caps()) }

// blockSpec has the constants of a block of rows for kernels of the scalar and the unfused path.
type blockSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	ThreadsX      uint32 `glsl:"THREADS_X"`
	BlockM        uint32 `glsl:"BLOCK_M"`
	BlockN        uint32 `glsl:"BLOCK_N"`
}

func newBlockSpec(threads, threadsX, m, n int) blockSpec {
	return blockSpec{uint32(threads), uint32(threadsX), uint32(m), uint32(n)}
}

func (c *Config) blockSpec() blockSpec {
	return newBlockSpec(c.Threads, c.ThreadsX, c.BlockM, c.BlockN)
}

// fwdScalarSpec is the specialization of attention_fwd_scalar.comp.
type fwdScalarSpec struct {
	tileSpec
	ValueRows uint32 `glsl:"VALUE_ROWS"`
	HeadDim   uint32 `glsl:"HEAD_DIM"`
	Causal    bool   `glsl:"CAUSAL"`
	Aligned   bool   `glsl:"ALIGNED"`
	WriteLSE  bool   `glsl:"WRITE_LSE"`
	SplitKV   bool   `glsl:"SPLIT_KV"`
}

// fwdDirectSpec is the specialization of attention_fwd_direct.comp, for small problems: K and V go from
// memory straight to operands of products, without a barrier, and Config.Stripes subgroups of a
// workgroup divide the keys of the same rows.
type fwdDirectSpec struct {
	matrixSpec
	SameLayout bool `glsl:"SAME_LAYOUT"`
	fwdTileSpec
	Stripes uint32 `glsl:"STRIPES"`
	Quads   bool   `glsl:"QUADS"`
}

// kernel returns the name of the fused kernel.
func (c *Config) kernel(p *Problem) string {
	switch {
	case c.Stripes > 0:
		return "attention_fwd_direct"
	case p.Quant != dtype.NoQuant:
		return c.Impl.kernel("attention_fwd_quant", p.DType)
	}
	return c.Impl.kernel("attention_fwd", p.DType)
}

// orElse returns t, or another tensor if t is zero: every binding needs a tensor.
func orElse(t, other vk.Tensor) vk.Tensor {
	if t.IsZero() {
		return other
	}
	return t
}

// Packing (PackGQA in FlashAttention): with one query per head, the heads that share a key head
// become the rows of one matrix. K and V are then read once for all of them, and rows that would be
// empty are used:
//
//	(batch, num_heads, 1, head_dim)  ->  (batch, num_kv_heads, num_heads/num_kv_heads, head_dim)
//
// This is another view of the same memory, and the same product. Only masks and features depend on
// rows or heads. A causal mask can be dropped: aligned to the bottom right, it hides nothing from
// the last query. Problems with features are not packed.

func packs(p *Problem) bool {
	all := !p.Causal || p.CausalAlign == BottomRight
	return p.SeqQ == 1 && p.NumHeads > p.NumKVHeads && all && p.Plain()
}

// packProblem returns the problem with the heads of a group as rows.
func packProblem(p Problem) Problem {
	p.SeqQ, p.NumHeads, p.Causal = p.NumHeads/p.NumKVHeads, p.NumKVHeads, false
	return p
}

// packHeads returns Q, O or LSE of p with the heads of a group as rows; the zero Tensor stays
// zero.
func packHeads(t vk.Tensor, p *Problem) vk.Tensor {
	if t.IsZero() {
		return t
	}
	rows := p.NumHeads / p.NumKVHeads
	head := t.Strides[1]
	shape, strides := []int{p.Batch, p.NumKVHeads, rows}, []int{t.Strides[0], rows * head, head}
	t.Shape, t.Strides = append(shape, t.Shape[3:]...), append(strides, t.Strides[3:]...)
	return t
}
