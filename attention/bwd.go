package attention

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// Backward computes the gradients of attention. For a loss with the gradient dO with respect to O,
//
//	P     = exp(S - LSE)                   of the keys that a row sees; S as in Forward
//	dP    = dO * Vᵀ
//	Delta = rowsum(dO * O)
//	dS    = P * (dP - Delta + dLSE)        element by element
//	dQ    = Scale * dS * K
//	dK    = Scale * dSᵀ * Q                summed over the heads that read the key head
//	dV    = Pᵀ * dO                        likewise
//
// internal/attention/ref/bwd.go has the formulas with the features of p. Kernels recompute S and P,
// tile by tile, from LSE. P is as exact as LSE: near scores of 1e4, LSE has a rounding error of up
// to 5e-4, which becomes the relative error of P.
//
// In float16 the matrix paths round dS, times the derivative of Softcap, to float16 before they multiply it
// by K and Q. Elements above 65504 become infinite, and then gradients that would fit are infinite
// or NaN. The scalar and the unfused path keep dS in float32, as bfloat16 and float32 do on all
// paths. With dropout p no element is above
//
//	2 * |dO| * |V| / (1 - p) + |dLSE|      |dO| and |V| being the longest rows
//
// Gradients are linear in dO and dLSE. A program may multiply both by a loss scale, a power of two
// that brings this bound below 65504, and the gradients by its inverse; only numbers below 2^-24
// are lost. Where dP and Delta cancel, dS keeps the rounding of O, 2^-11 * |dO| * |O| in float16:
// inputs of thousands turn this rounding into gradients that should be 0, on all paths.
//
// The gradient of a bias, g.DBias, is summed over the axes that the bias shares. The gradient of a
// bias has its own kernels, which recompute S and dP. With BackwardConfig.Stored and without
// Softcap they read dS, which is stored in 16 bits.
//
// Q, O, dO and dQ are (batch, num_heads, seq_q, head_dim), K, V, dK and dV are (batch,
// num_kv_heads, seq_kv, head_dim), with any strides and a contiguous last axis, all of p.DType. LSE
// is (batch, num_heads, seq_q) float32. O and LSE are the results of Forward for the same p and
// inputs. Sums are float32. Strides and offsets that are multiples of 8 elements are fastest. The
// memory of each gradient, gaps included, must not overlap the memory of another tensor.
//
// Masks are as in Forward. Keys and values that are hidden from every row may be anything; their
// dK and dV are 0. A row that sees no key has dQ = 0.
//
// Backward needs Workspace bytes of memory: opt.Workspace, or memory of c (vk.Cmd.Scratch). Stored
// weights use all of opt.Workspace, which must hold the weights of one head at least. The unfused
// path also keeps P and dS in memory of c.
//
// Backward records into c and returns; gradients are valid once c has completed.
//
// The same call on the same device gives the same bits: no two workgroups add to the same memory.
//
// The error wraps vk.ErrUnsupported if no path on the device handles p, and names the argument if a
// tensor does not fit p.
//
// The algorithm is Algorithm 2 of Dao, FlashAttention-2 (arXiv:2307.08691). Delta is D in line 4
// there, dS is line 14, the gradients are lines 12, 15 and 16. The paper's loop over rows and keys
// computes all gradients at once, as BackwardConfig.Fused does. By default one loop computes dK and
// dV and another dQ. With BackwardConfig.Stored one loop computes dQ and stores P and dS, and dV
// and dK are products of these.
func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, opt Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	config, err := chooseBackward(c.Device().Caps(), p, opt)
	if err != nil {
		return err
	}
	shapes := config.workspaceShapes(c.Device().Caps(), &p)
	if err := checkBackward(&t, &g, opt.Workspace, &p, workspaceBytes(shapes)); err != nil {
		return err
	}
	w, err := newBwdWorkspace(c, shapes, opt.Workspace)
	if err != nil {
		return err
	}
	vk.Narrow(&g.DQ, &g.DK, &g.DV, &g.DO, &g.DLSE, &g.DBias, &g.DSinks)
	vk.Narrow(t.all()...)
	if err := recordDelta(c, w.rows, g.DO, t.O, t.LSE, g.DLSE, p); err != nil {
		return err
	}
	if p.Varlen.On {
		for _, x := range []*vk.Tensor{&g.DQ, &g.DK, &g.DV, &g.DO, &t.Q, &t.K, &t.V} {
			*x = unpack(*x, &p)
		}
	}
	b := backward{c, g.DQ, g.DK, g.DV, g.DO, t.Q, t.K, t.V, w, p, config, &t, &g}
	return steps.Together(b.steps(), b.featureSteps()).Record(c)
}

// backward holds the arguments of a call. Tensors of a Varlen are unpacked.
type backward struct {
	c                       *vk.Cmd
	dq, dk, dv, do, q, k, v vk.Tensor
	bwdWorkspace
	p         Problem
	config    BackwardConfig
	tensors   *Tensors // of features
	gradients *Gradients
}

// steps returns the kernel that computes dK and dV beside the kernel that computes dQ, or the
// kernels of the unfused path or of stored weights, or the kernel that computes all gradients.
func (b *backward) steps() steps.List {
	step := func(record func() error) steps.List {
		return steps.List{func(*vk.Cmd) error { return record() }}
	}
	switch {
	case b.config.Impl == Unfused:
		return step(b.recordUnfused)
	case b.config.biasOfStored(&b.p) && !b.p.Bias.Rows && !b.gradients.DBias.IsZero():
		return append(step(b.recordStored), step(func() error { return b.recordDBiasSum(b.gradients.DBias) })...)
	case b.config.stored():
		return step(b.recordStored)
	case b.config.fused():
		return step(b.recordFused)
	}
	return step(b.record)
}

// record records the kernel that computes dK and dV, and the kernel that computes dQ.
func (b *backward) record() error {
	config, p := &b.config, &b.p
	keys, rows := b.work()
	dkv, dq := b.kernel("attention_bwd_dkv", config.DKV, keys, b.dk, b.dv), b.kernel("attention_bwd_dq", config.DQ, rows, b.dq)
	params := newBwdParams(b.do, b.q, b.k, b.v, *p)
	params.DX, params.DV = placeOf(b.dk), placeOf(b.dv)
	b.dispatch(dkv, params, keys, b.q, b.k, b.v, b.do, b.rows, b.dk, b.dv)
	params.DX = placeOf(b.dq)
	b.dispatch(dq, params, rows, b.q, b.k, b.v, b.do, b.rows, b.dq)
	return b.c.Err()
}

// bwdWork is what a kernel owns: blocks of keys or rows, in each of the heads of a batch. With a
// group, `group` heads of all batches take turns with their blocks (groupHeads).
type bwdWork struct {
	blocks       uint32
	heads, group int
}

// work returns what the kernels of dK and dV, and of dQ, own.
func (b *backward) work() (keys, rows bwdWork) {
	config, p, caps := &b.config, &b.p, b.c.Device().Caps()
	keys = bwdWork{blocks: groups(p.SeqKV, config.DKV.owned(caps, config.Impl, p.DType)), heads: p.NumKVHeads}
	rows = bwdWork{blocks: groups(p.SeqQ, config.DQ.owned(caps, config.Impl, p.DType)), heads: p.NumHeads}
	if config.Impl != Scalar { // its kernels have the order without groups
		keys.group = keyGroup(p, int(keys.blocks), caps.MaxWorkgroupCount)
		rows.group = rowGroup(p, int(rows.blocks), caps.MaxWorkgroupCount)
	}
	return keys, rows
}

// keyGroup returns how many heads take turns with their blocks of keys. Blocks of keys walk over Q
// and dO of all heads that read the key head.
func keyGroup(p *Problem, blocks int, limit [3]uint32) int {
	return groupHeads(p, p.Batch*p.NumKVHeads, p.SeqQ*p.NumHeads/p.NumKVHeads, 1, blocks, limit)
}

// kernel returns the kernel of the path with these outputs.
func (b *backward) kernel(name string, tile BackwardTile, work bwdWork, outputs ...vk.Tensor) kernel[bwdParams] {
	name = b.config.Impl.kernel(name, b.p.DType)
	if b.config.Impl == Scalar {
		return b.scalarKernel(name, tile)
	}
	wide := 16 / b.p.DType.Size() // elements of 16 bytes
	return b.matrixKernel(name, tile, work.group > 0, argument.Aligned(wide, append(outputs, b.q, b.k, b.v, b.do)...))
}

// bwdInputs is the block of lib/params_bwd.glsl, its common part.
type bwdInputs struct {
	HeadsPerKV  uint32  `glsl:"heads_per_kv"`
	CausalShift int32   `glsl:"causal_shift"`
	ScaleLog2   float32 `glsl:"scale_log2"`
	RowsOffset  uint32  `glsl:"rows_offset"` // pairs
	NumKVHeads  uint32  `glsl:"num_kv_heads"`
	RowsStrideH uint32  `glsl:"rows_stride_h"`
	qkvParams           // elements, like all that follow
	DO          place   `glsl:"do"`
}

// bwdParams is the push-constant block of lib/params_bwd.glsl.
type bwdParams struct {
	SeqQ  uint32 `glsl:"seq_q"`
	SeqKV uint32 `glsl:"seq_kv"`
	bwdInputs
	DX place `glsl:"dx"` // dQ, or dK
	DV place `glsl:"dv"`
}

// newBwdParams fills the block for all batches, except for the outputs.
func newBwdParams(do, q, k, v vk.Tensor, p Problem) bwdParams {
	return bwdParams{
		SeqQ: uint32(p.SeqQ), SeqKV: uint32(p.SeqKV),
		bwdInputs: bwdInputs{
			HeadsPerKV:  uint32(p.NumHeads / p.NumKVHeads),
			CausalShift: int32(p.Mask().Shift),
			ScaleLog2:   float32(p.EffectiveScale() * log2e),
			NumKVHeads:  uint32(p.NumKVHeads),
			RowsStrideH: rowsStrideH(&p),
			qkvParams:   newQKVParams(q, k, v),
			DO:          placeOf(do),
		},
	}
}

// skipBatches moves on by n batches of p.
func (b *bwdParams) skipBatches(p *Problem, n uint32) {
	b.RowsOffset += n * rowsStrideB(p)
	for _, x := range []*place{&b.Q, &b.K, &b.V, &b.DO, &b.DX, &b.DV} {
		x.skip(n)
	}
}

// dispatch records a kernel over blocks of a sequence, heads and batches, in the order of
// shaders/lib/order.glsl. Without groups a dispatch takes as many batches as the device allows.
func (b *backward) dispatch(kernel kernel[bwdParams], params bwdParams, work bwdWork, tensors ...vk.Tensor) {
	p := &b.p
	features := b.features()
	if n := work.group; n > 0 {
		b.fits(1, work.blocks, work.heads)
		kernel.dispatch(b.c, vk.Groups{X: uint32(n), Y: work.blocks, Z: uint32(p.Batch * work.heads / n)}, params, features, tensors...)
		return
	}
	b.fits(work.blocks, 1, work.heads)
	inSteps(b.c.Device(), p.Batch, func(first, n uint32) {
		kernel.dispatch(b.c, vk.Groups{X: work.blocks, Y: uint32(work.heads), Z: n}, params, features, tensors...)
		params.skipBatches(p, n)
		features.skip(p, first, n)
	})
}

// fits keeps an error in c unless the device takes blocksX workgroups in x and blocksY, or one per
// head, in y.
func (b *backward) fits(blocksX, blocksY uint32, heads int) {
	p, limit := &b.p, b.c.Device().Caps().MaxWorkgroupCount
	var err error
	switch n := float64(blocksX) * float64(blocksY) * float64(heads) * float64(p.Batch); {
	case blocksX > limit[0] || blocksY > limit[1]:
		err = unsupported("backward: seq_q=%d by seq_kv=%d makes %d by %d blocks, more than the device's %d by %d workgroups", p.SeqQ, p.SeqKV, blocksX, blocksY, limit[0], limit[1])
	case heads > int(limit[1]):
		err = unsupported("backward: %d heads are more than the device's %d workgroups", heads, limit[1])
	case n > math.MaxUint32:
		err = unsupported("backward: %.3g blocks in all heads and batches are more than 2^32", n)
	}
	b.c.Keep(&err)
}

// features returns the arguments of the features for all batches, nil for a plain problem.
func (b *backward) features() *boundFeatures {
	return newBoundFeatures(&b.p, b.tensors, b.q)
}

// A bwdWorkspace holds the results that kernels of a call leave for other kernels, in float32, each
// in a slice of one buffer.
type bwdWorkspace struct {
	rows      vk.Tensor // (batch, num_heads, seq_q, 2), or (num_heads, total_q, 2): of attention_bwd_delta
	sinkParts vk.Tensor // (batch, num_heads, sinkChunks): of attention_bwd_dsinks
	biasParts vk.Tensor // (batch, num_heads, seq_kv): of attention_bwd_dbias or attention_bwd_dbias_stored, for rows that share a bias
	pages     vk.Tensor // (heads, pages, block, block), in which P and dX are 16 bits each: of lib/pages.glsl
	sums      vk.Tensor // (2, heads, seq_kv * head_dim), padded: dV and dK so far, of attention_bwd_products.comp
	biasSums  vk.Tensor // (batch or 1, num_heads or 1, seq_q, seq_kv): dBias so far, of attention_bwd_dbias_stored.comp
}

// workspaceShapes are the shapes of the tensors of a bwdWorkspace, nil for a tensor that is not
// needed.
type workspaceShapes [6][]int

// workspaceShapes returns the shapes that the kernels of c need for p.
func (c *BackwardConfig) workspaceShapes(caps *vk.Caps, p *Problem) (shapes workspaceShapes) {
	shapes[0] = []int{p.Batch, p.NumHeads, p.SeqQ, 2}
	if p.Varlen.On {
		shapes[0] = []int{p.NumHeads, p.Varlen.TotalQ, 2}
	}
	if p.Sinks {
		shapes[1] = []int{p.Batch, p.NumHeads, int(groups(p.SeqQ, sinkChunk))}
	}
	if p.Bias.On && !p.Bias.Rows {
		shapes[2] = []int{p.Batch, p.NumHeads, p.SeqKV}
	}
	shapes[3] = c.pagesShape(caps, p)
	shapes[4] = c.sumsShape(caps, p)
	shapes[5] = c.biasSumsShape(caps, p)
	return shapes
}

// rowsStrideB returns the stride of a batch in bwdWorkspace.rows, in pairs.
func rowsStrideB(p *Problem) uint32 {
	if p.Varlen.On {
		return 0
	}
	return uint32(p.NumHeads * p.SeqQ)
}

// rowsStrideH returns the stride of a head in bwdWorkspace.rows, in pairs.
func rowsStrideH(p *Problem) uint32 {
	if p.Varlen.On {
		return uint32(p.Varlen.TotalQ)
	}
	return uint32(p.SeqQ)
}

func workspaceBytes(shapes workspaceShapes) (bytes int64) {
	for _, shape := range shapes {
		if shape != nil {
			bytes = alignWorkspace(bytes) + 4*int64(size(shape))
		}
	}
	return bytes
}

// alignWorkspace rounds up to the next start of a slice: on every device, slices may start at
// multiples of 256 bytes.
func alignWorkspace(bytes int64) int64 { return (bytes + 255) / 256 * 256 }

// newBwdWorkspace cuts the workspace out of the caller's memory, or out of memory of c if there is
// none.
func newBwdWorkspace(c *vk.Cmd, shapes workspaceShapes, b *vk.Buffer) (w bwdWorkspace, err error) {
	bytes := workspaceBytes(shapes)
	if limit := c.Device().Caps().MaxStorageBufferRange; uint64(bytes) > uint64(limit) {
		return w, unsupported("backward: a workspace of %d bytes is more than the device's largest storage buffer, %d", bytes, limit)
	}
	if b == nil {
		b = c.Scratch("attention.backward", bytes)
	}
	at := int64(0)
	for i, t := range []*vk.Tensor{&w.rows, &w.sinkParts, &w.biasParts, &w.pages, &w.sums, &w.biasSums} {
		if shapes[i] == nil {
			continue
		}
		at = alignWorkspace(at)
		*t = vk.View(b, dtype.Float32, shapes[i]...)
		t.Offset = int(at / 4)
		*t = t.Narrow()
		at += 4 * int64(size(shapes[i]))
	}
	return w, c.Err()
}
