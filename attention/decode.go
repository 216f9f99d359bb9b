package attention

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// DecodeTensors are the inputs and outputs of Decode. Tensors that the problem does not have are
// zero Tensors. The others have any strides and a contiguous last axis.
//
//	tensor         of             shape                                                     format
//	Q                             (batch, num_heads, seq_q, head_dim)                       DType
//	K                             (cache_rows, num_kv_heads, seq_kv, head_dim),
//	               PageSize       or (pages, num_kv_heads, page_size, head_dim)             CacheDType
//	V                             K's with value_dim                                        CacheDType
//	KScale         Cache          (num_kv_heads), or K's with head_dim/32: CacheFormat      ScaleDType
//	VScale         Cache          likewise of V                                             ScaleDType
//	O                             (batch, num_heads, seq_q, value_dim)                      DType, written
//	LSE                           (batch, num_heads, seq_q)                                 float32, written; may be left out
//	SeqLens                       (batch): keys, without the NewKeys last ones              int32
//	BlockTable     PageSize       (batch, seq_kv/page_size): pages of a sequence, in order  int32
//	CacheBatchIdx  CacheRows      (batch): row of the cache                                 int32
//	LeftPad        LeftPad        (batch): hidden keys                                      int32
//	TreeMask       Tree           (batch, seq_q, 2): bits, the low word first               int32
//	Bias           Bias.On        (batch or 1, num_heads or 1, seq_q or 1, seq_kv)          Bias.DType
//	ALiBiSlopes    ALiBi          (num_heads) or (batch, num_heads)                         float32
//	Sinks          Sinks          (num_heads)                                               float32
//	State                         (1 + batch*num_heads*seq_q)                               int32, read and written
//
// With CacheE4M3, KScale and VScale may have one element for all heads, or be left out. With
// CacheQ8_0 the strides of a scale are the strides of K or V divided by 32. Rows of 8-bit caches
// begin at multiples of 8 bytes.
//
// A cache of (batch, seq_kv, num_kv_heads, head_dim), flash-attn's and vLLM's NHD, is K.Permute(0,
// 2, 1, 3).
//
// State must be zero before the first call, and only these functions write it. Calls that may run
// at the same time have different States. State[0] has bits for errors that only the device can
// see; they stay until the host clears them (DecodeStatus). The results of such a call are invalid,
// but no memory beyond the tensors was touched.
//
// An infinite or NaN element of V makes its column of O infinite or NaN in the rows that see its key. In
// the other rows of that sequence and key head it may make it NaN. On matrices with 8 rows (DecodeConfig)
// it may make one more column of all these rows NaN. It makes no other element wrong.
type DecodeTensors struct {
	Q, K, V, O, LSE                             vk.Tensor
	KScale, VScale                              vk.Tensor
	SeqLens, BlockTable, CacheBatchIdx, LeftPad vk.Tensor
	TreeMask, Bias, ALiBiSlopes, Sinks          vk.Tensor
	State                                       vk.Tensor
}

// Decode computes softmax attention of the last queries of each sequence with its cache,
//
//	n   = SeqLens[b] + NewKeys
//	S   = Scale * Q * Kᵀ, then Softcap, Bias and ALiBi: see Problem
//	P   = softmax(S) over the keys, of the first n, that a query sees
//	O   = P * V
//	LSE = log(sum(exp(S))) of each row, natural logarithm
//
// It is made for the speed of memory: all queries of a group of heads share one read of each key,
// and the keys of all sequences are divided evenly among the compute units, whatever the lengths.
// Sums and weights are float32. A row that sees no key has O = 0 and LSE = -Inf, or with Sinks LSE
// = the sink of its head. The value of a key that only -Inf in a bias hides must be finite.
//
// The device reads lengths and tables, so a recorded Decode runs again while the cache grows. The
// same values give the same bits, in every order of pages.
//
// The error wraps vk.ErrUnsupported if the device has no kernel for p, and names the argument if a
// tensor does not fit p.
//
// The division of keys follows stream-K (Osama et al., arXiv:2301.03598) and FlashInfer (Ye et al.,
// arXiv:2501.01005).
func Decode(c *vk.Cmd, t DecodeTensors, p DecodeProblem, opt Options) (err error) {
	defer c.Keep(&err)
	d := c.Device()
	config, _, err := chooseDecode(d.Caps(), p, opt)
	if err != nil {
		return err
	}
	if err := checkDecode(&t, &p, opt.Workspace, config.partsBytes(p)); err != nil {
		return err
	}
	if err := config.checkLayout(d.Caps(), &p, askDevice(d)); err != nil {
		return err
	}
	defer c.Scope()()
	return recordDecode(c, &t, &p, config, opt.Workspace)
}

// recordDecode records the kernel for tensors that fit p.
func recordDecode(c *vk.Cmd, t *DecodeTensors, p *DecodeProblem, config DecodeConfig, parts *vk.Buffer) error {
	d := c.Device()
	tensors, err := decodeBindings(c, t, p, config, parts)
	if err != nil {
		return err
	}
	spec, params := config.spec(d.Caps(), t, p), newDecodeParams(d.Caps(), t, p, config)
	if p.Cache == CacheSame {
		return dispatchDecode(c, config, p, spec, params, tensors)
	}
	return dispatchDecode(c, config, p, spec, decodeCache8Params{params, newCacheParams(p, &t.KScale, &t.VScale)},
		append(tensors, orElse(t.KScale, t.SeqLens), orElse(t.VScale, t.SeqLens)))
}

// decodeBindings returns the bindings of the kernel with a cache of DType. It narrows t.
func decodeBindings(c *vk.Cmd, t *DecodeTensors, p *DecodeProblem, config DecodeConfig, parts *vk.Buffer) ([]vk.Tensor, error) {
	vk.Narrow(&t.Q, &t.K, &t.V, &t.KScale, &t.VScale, &t.O, &t.LSE, &t.SeqLens, &t.BlockTable, &t.CacheBatchIdx, &t.LeftPad, &t.TreeMask, &t.Bias, &t.ALiBiSlopes, &t.Sinks, &t.State)
	bytes := config.partsBytes(*p)
	if parts == nil {
		parts = c.Scratch("attention.decode", bytes)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return []vk.Tensor{
		t.Q, t.K, t.V, t.O, orElse(t.LSE, t.O), t.SeqLens, orElse(t.BlockTable, t.SeqLens), t.State,
		vk.View(parts, dtype.Float32, int(bytes/4)),
		orElse(t.TreeMask, t.SeqLens), orElse(t.ALiBiSlopes, t.SeqLens), orElse(t.Bias, t.SeqLens), orElse(t.Sinks, t.SeqLens), orElse(t.LeftPad, t.SeqLens), orElse(t.CacheBatchIdx, t.SeqLens),
	}, nil
}

// dispatchDecode records the kernel with a specialization, push constants and tensors.
func dispatchDecode[P any](c *vk.Cmd, config DecodeConfig, p *DecodeProblem, spec any, params P, tensors []vk.Tensor) error {
	d := c.Device()
	kernel := chips.Kernel[P](c, config.kernel(p), p.DType.Short(), spec, vk.KernelOptions{SubgroupSize: d.Caps().SubgroupSize, FullSubgroups: true})
	kernel.Dispatch(c, vk.Groups{X: uint32(config.Groups)}, params, tensors...)
	return c.Err()
}

// checkDecode returns an error that names the first tensor that does not fit the problem.
func checkDecode(t *DecodeTensors, p *DecodeProblem, workspace *vk.Buffer, bytes int64) error {
	const name = "attention: decode"
	cache := p.cacheArguments(t)
	inputs := append(p.decodeInputs(make([]argument.Argument, 0, mostArguments), t), cache[:]...)
	inputs = append(inputs, p.scaleArguments(&t.KScale, &t.VScale)...)
	outputs, err := p.decodeOutputs(make([]argument.Argument, 0, mostArguments), name, t, workspace, bytes)
	if err != nil {
		return err
	}
	if err := argument.Check(name, inputs, outputs); err != nil {
		return err
	}
	return p.checkCache(name, &t.K, &t.V, &t.KScale, &t.VScale)
}

// cacheArguments returns Q, K and V, which Decode reads and Step writes.
func (p *DecodeProblem) cacheArguments(t *DecodeTensors) [3]argument.Argument {
	return [...]argument.Argument{
		argument.New("q", t.Q, true, p.DType, p.QShape()),
		argument.New("k", t.K, true, p.CacheDType(), p.KShape()),
		argument.New("v", t.V, true, p.CacheDType(), p.VShape()),
	}
}

// mostArguments is the room for inputs, or outputs, of Decode and Step: lists that do not grow need no
// memory but the stack.
const mostArguments = 16

// decodeInputs appends the tensors that Decode and Step read, without Q and the cache.
func (p *DecodeProblem) decodeInputs(list []argument.Argument, t *DecodeTensors) []argument.Argument {
	list = append(list,
		argument.New("seq_lens", t.SeqLens, true, dtype.Int32, p.SeqLensShape()),
		argument.New("block_table", t.BlockTable, p.PageSize > 0, dtype.Int32, p.BlockTableShape()),
		argument.New("cache_batch_idx", t.CacheBatchIdx, p.CacheRows > 0, dtype.Int32, p.SeqLensShape()),
		argument.New("left_pad", t.LeftPad, p.LeftPad, dtype.Int32, p.SeqLensShape()),
		argument.New("tree_mask", t.TreeMask, p.Tree, dtype.Int32, p.TreeMaskShape()))
	features := p.featureParts()
	for i, x := range []*vk.Tensor{&t.Bias, &t.ALiBiSlopes, &t.Sinks} {
		list = append(list, p.argument(&features[i], x))
	}
	return list
}

// decodeOutputs appends the tensors that Decode and Step write, without Q and the cache.
func (p *DecodeProblem) decodeOutputs(list []argument.Argument, name string, t *DecodeTensors, workspace *vk.Buffer, bytes int64,
) ([]argument.Argument, error) {
	list = append(list,
		argument.New("o", t.O, true, p.DType, p.OShape()),
		argument.New("lse", t.LSE, !t.LSE.IsZero(), dtype.Float32, p.LSEShape()),
		argument.New("state", t.State, true, dtype.Int32, p.StateShape()))
	return withWorkspace(list, name, workspace, bytes)
}

// decodeSpec is the specialization of attention_decode.comp.
type decodeSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	SubgroupSize  uint32 `glsl:"SUBGROUP_SIZE"`
	Team          uint32 `glsl:"TEAM"`
	Rows          uint32 `glsl:"ROWS"`
	Keys          uint32 `glsl:"KEYS"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	ValueDim      uint32 `glsl:"VALUE_DIM"`
	PageSize      uint32 `glsl:"PAGE_SIZE"`
	Aligned       bool   `glsl:"ALIGNED"`
	Causal        bool   `glsl:"CAUSAL"`
	Tree          bool   `glsl:"TREE"`
	Window        bool   `glsl:"WINDOW"`
	Softcap       bool   `glsl:"SOFTCAP"`
	ALiBi         bool   `glsl:"ALIBI"`
	Bias          bool   `glsl:"BIAS"`
	BiasF32       bool   `glsl:"BIAS_F32"`
	Sinks         bool   `glsl:"SINKS"`
	LeftPad       bool   `glsl:"LEFT_PAD"`
	BatchIdx      bool   `glsl:"BATCH_IDX"`
	WriteLSE      bool   `glsl:"WRITE_LSE"`
	Alone         bool   `glsl:"ALONE"`
}

// decodeCache8Spec is decodeSpec with CACHE8.
type decodeCache8Spec struct {
	Decode decodeSpec
	Cache  cacheSpec
	WideK  bool `glsl:"WIDE_K"`
	WideV  bool `glsl:"WIDE_V"`
}

func newDecodeCache8Spec(spec decodeSpec, t *DecodeTensors, p *DecodeProblem) decodeCache8Spec {
	return decodeCache8Spec{
		Decode: spec, Cache: newCacheSpec(p, &t.KScale),
		WideK: p.HeadDim%64 == 0 && t.K.Aligned(16), WideV: p.ValueHeadDim()%128 == 0 && t.V.Aligned(16),
	}
}

// tilesSpec has the constants of lib/decode_tiles.glsl, behind those of the kernel.
type tilesSpec struct {
	MatM     uint32 `glsl:"MAT_M"`
	MatN     uint32 `glsl:"MAT_N"`
	Lockstep bool   `glsl:"LOCKSTEP"`
}

// decodeTilesSpec is decodeSpec with TILES.
type decodeTilesSpec struct {
	Decode decodeSpec
	Tiles  tilesSpec
}

// decodeCache8TilesSpec is decodeTilesSpec with CACHE8.
type decodeCache8TilesSpec struct {
	Cache8 decodeCache8Spec
	Tiles  tilesSpec
}

// spec returns the specialization of the kernel.
func (c DecodeConfig) spec(caps *vk.Caps, t *DecodeTensors, p *DecodeProblem) any {
	spec := newDecodeSpec(caps, t, p, c)
	cache8 := newDecodeCache8Spec(spec, t, p)
	shape, _ := matrixShape(caps, CoopMat, p.operands())
	tiles := tilesSpec{shape.M, shape.N, chips.Lavapipe(caps)}
	switch {
	case c.Detour && p.Cache != CacheSame:
		return decodeCache8TilesSpec{cache8, tiles}
	case c.Detour:
		return decodeTilesSpec{spec, tiles}
	case p.Cache != CacheSame:
		return cache8
	}
	return spec
}

func newDecodeSpec(caps *vk.Caps, t *DecodeTensors, p *DecodeProblem, config DecodeConfig) decodeSpec {
	return decodeSpec{
		WorkgroupSize: uint32(config.Subgroups) * caps.SubgroupSize,
		SubgroupSize:  caps.SubgroupSize,
		Team:          uint32(config.team(caps, p)),
		Rows:          uint32(config.Rows),
		Keys:          uint32(config.keys(caps, p)),
		HeadDim:       uint32(p.HeadDim),
		ValueDim:      uint32(p.ValueHeadDim()),
		PageSize:      uint32(p.PageSize),
		Aligned:       argument.Aligned(p.decodeVec(), p.alignable([]vk.Tensor{t.Q}, t.K, t.V)...),
		Causal:        p.Causal,
		Tree:          p.Tree,
		Window:        p.Window.On && p.Window.Left != Unlimited,
		Softcap:       p.Softcap != 0,
		ALiBi:         p.ALiBi != ALiBiOff,
		Bias:          p.Bias.On,
		BiasF32:       p.biasFormat() == dtype.Float32,
		Sinks:         p.Sinks,
		LeftPad:       p.LeftPad,
		BatchIdx:      p.CacheRows > 0,
		WriteLSE:      !t.LSE.IsZero(),
		Alone:         config.alone(p),
	}
}

// decodeBuffers is the number of bindings of attention_decode.comp.
const decodeBuffers = 15

// decodeParams is the push-constant block of attention_decode.comp.
type decodeParams struct {
	Batch        uint32  `glsl:"batch"`
	SeqQ         uint32  `glsl:"seq_q"`
	Group        uint32  `glsl:"group"`
	GroupInverse uint32  `glsl:"group_inverse"`
	KVHeads      uint32  `glsl:"kv_heads"`
	RowBlocks    uint32  `glsl:"row_blocks"`
	NewKeys      int32   `glsl:"new_keys"`
	Capacity     int32   `glsl:"capacity"`
	Pages        uint32  `glsl:"pages"`
	LeastTiles   uint32  `glsl:"least_tiles"`
	Splits       uint32  `glsl:"splits"`
	Scale        float32 `glsl:"scale_log2"`
	WindowLeft   int32   `glsl:"window_left"`
	SoftcapIn    float32 `glsl:"softcap_in"`
	SoftcapOut   float32 `glsl:"softcap_out"`
	qkvParams
	outParams
	SeqLensOffset     uint32 `glsl:"seq_lens_offset"` // elements, like all that follow
	BlockTableOffset  uint32 `glsl:"block_table_offset"`
	BlockTableStrideB uint32 `glsl:"block_table_stride_b"`
	StateOffset       uint32 `glsl:"state_offset"`
	TreeMaskOffset    uint32 `glsl:"tree_mask_offset"`
	TreeMaskStrideB   uint32 `glsl:"tree_mask_stride_b"`
	TreeMaskStrideS   uint32 `glsl:"tree_mask_stride_s"`
	SlopesOffset      uint32 `glsl:"slopes_offset"`
	SlopesStrideB     uint32 `glsl:"slopes_stride_b"`
	Bias              place  `glsl:"bias"`
	SinksOffset       uint32 `glsl:"sinks_offset"`
	LeftPadOffset     uint32 `glsl:"left_pad_offset"`
	BatchIdxOffset    uint32 `glsl:"batch_idx_offset"`
}

// decodeCache8Params is decodeParams with CACHE8.
type decodeCache8Params struct {
	decodeParams
	cacheParams
}

// decodeLeastKeys is the least number of keys of a workgroup, whose start and part of the sums cost
// as much as reading a few keys.
const decodeLeastKeys = 64

func newDecodeParams(caps *vk.Caps, t *DecodeTensors, p *DecodeProblem, config DecodeConfig) decodeParams {
	params := decodeParams{
		Batch: uint32(p.Batch), SeqQ: uint32(p.SeqQ), Group: uint32(p.NumHeads / p.NumKVHeads), GroupInverse: groupInverse(p.NumHeads / p.NumKVHeads), KVHeads: uint32(p.NumKVHeads),
		RowBlocks: groups(p.groupRows(), config.Rows), NewKeys: int32(p.NewKeys), Capacity: int32(p.SeqKV), Pages: uint32(p.slots()),
		LeastTiles: uint32(max(1, decodeLeastKeys/(config.keys(caps, p)*int(caps.SubgroupSize)/config.team(caps, p)))),
		Splits:     uint32(config.splits(p)),
		Scale:      float32(p.EffectiveScale() * math.Log2E), WindowLeft: int32(p.Window.Left),
		qkvParams: newQKVParams(t.Q, t.K, t.V), outParams: newOutParams(t.O, t.LSE),
		SeqLensOffset:    uint32(t.SeqLens.Offset),
		BlockTableOffset: uint32(t.BlockTable.Offset), BlockTableStrideB: stride(&t.BlockTable, 0),
		StateOffset:    uint32(t.State.Offset),
		TreeMaskOffset: uint32(t.TreeMask.Offset), TreeMaskStrideB: stride(&t.TreeMask, 0), TreeMaskStrideS: stride(&t.TreeMask, 1),
		SlopesOffset: uint32(t.ALiBiSlopes.Offset), Bias: sharedPlace(t.Bias), SinksOffset: uint32(t.Sinks.Offset),
		LeftPadOffset: uint32(t.LeftPad.Offset), BatchIdxOffset: uint32(t.CacheBatchIdx.Offset),
	}
	if p.Softcap != 0 {
		params.SoftcapIn, params.SoftcapOut = float32(2/p.Softcap), float32(math.Log2E*p.Softcap)
	}
	if p.ALiBi == ALiBiPerBatchHead {
		params.SlopesStrideB = stride(&t.ALiBiSlopes, 0)
	}
	return params
}
