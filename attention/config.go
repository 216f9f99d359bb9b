package attention

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// A Config is a path with its tile sizes: they become specialization constants.
type Config struct {
	Impl Impl

	// Matrix paths. A workgroup of Subgroups subgroups owns
	// Subgroups*RowTiles*M rows, where M x N x N is the device's matrix shape.
	Subgroups int `word:"sg%d" on:"coopmat2 coopmat" tune:"1 2 4 8"`
	RowTiles  int `word:"rt%d" on:"coopmat2 coopmat" tune:"1 2"`

	// Rows of a block of the other paths, and keys of a tile of all.
	BlockM int `word:"%dx%d BlockN" on:"scalar unfused" tune:"16 32 64 128"`
	BlockN int `word:"bn%d" tune:"8 16 24 32 48 64 96 128"`

	// Matrix paths.
	Prefetch  bool `word:"prefetch" on:"coopmat2 coopmat" tune:"0 1"`                     // the next key tile waits in registers
	KeysFirst bool `word:"keysfirst" on:"coopmat2 coopmat" vary:"0 1"`                    // with Prefetch: the first key tile is loaded before Q
	PeelMask  bool `word:"peel" on:"coopmat2 coopmat" vary:"0 1"`                         // the masked tiles have their own loop
	LoadAhead int  `word:"loadahead%d" on:"coopmat2 coopmat" tune:"0 4" vary:"0 2 4 6 8"` // operands are loaded at most this many matrices of head_dim ahead; 0: the compiler's choice
	Stripes   int  `word:"stripes%d" on:"coopmat2"`                                       // this many subgroups divide the keys of the same rows, and K and V go straight from memory to registers (fwd.go); 0: each subgroup has its own rows, and tiles are in shared memory
	Detour    bool `word:"detour" on:"coopmat2 coopmat"`                                  // the kernel does not use the layout of matrices, even if it is known; for tests

	// Scalar and unfused paths: Threads invocations, ThreadsX in a row.
	Threads   int `word:"t%dx%d /ThreadsX" on:"scalar unfused" tune:"64 128 256"`
	ThreadsX  int `on:"scalar unfused" tune:"8 16"`
	Depth     int `word:"depth%d" on:"scalar unfused" vary:"8 16 32 64"` // columns of Q and K in shared memory at a time
	ValueRows int `word:"rows%d" on:"scalar" vary:"4 8 16 32"`           // rows of V in shared memory at a time

	// Splits is the number of workgroups that divide the keys of a block of rows, on all
	// paths but Unfused (combine.go); 0 and 1: the keys are not divided. In a row of the
	// tuning table, 0 lets Choose find the number and 1 forbids splits.
	Splits int `word:"splits%d" least:"2"`
}

// String names every choice in a few words, which ParseConfig reads (docs/kernels.md explains them):
// subgroups, row tiles and keys of a tile on the matrix paths; rows x keys and the grid of
// invocations on the others.
func (c Config) String() string { return table.Text(c) }

// ParseConfig reads what Config.String writes, as in "coopmat2 sg4 rt2 bn64 prefetch".
func ParseConfig(text string) (Config, error) { return table.Parse[Config]("attention", text) }

// blockRows returns the rows of a block, which one workgroup owns; 1 if the
// device has no matrices for the path.
func (c *Config) blockRows(caps *vk.Caps, t dtype.DType) int {
	if c.Impl == Scalar || c.Impl == Unfused {
		return max(c.BlockM, 1)
	}
	shape, err := matrixShape(caps, c.Impl, t)
	if err != nil {
		return 1
	}
	return max(c.Subgroups/max(c.Stripes, 1)*c.RowTiles*int(shape.M), 1)
}

func unsupported(format string, args ...any) error {
	return argument.Unsupported("attention", format, args...)
}

// errLoneSubgroup is why a workgroup has more than one subgroup on some drivers.
var errLoneSubgroup = unsupported("coopmat: the driver loses the order of shared memory in workgroups of one subgroup")

// Feasible returns nil if c can compute p on a device, and otherwise the reason, which wraps
// vk.ErrUnsupported. It is the only statement of what the kernels demand of a configuration: the
// tuning table, the tuner and the tests call it.
func (c Config) Feasible(caps *vk.Caps, p Problem) error {
	if p.DType != dtype.Float32 && !caps.Storage16 {
		return unsupported("%v: %v needs 16-bit storage", c.Impl, p.DType)
	}
	if !caps.ScalarBlockLayout {
		return unsupported("%v: the device has no scalar block layout", c.Impl)
	}
	if p.Quant != dtype.NoQuant && (c.Impl == Unfused || c.Stripes > 0 || onMatrices(c.Impl) && p.Quant != dtype.QuantInt8) {
		return unsupported("%v: no kernel for quant=%v", c, p.Quant)
	}
	var shared int
	var err error
	switch c.Impl {
	case CoopMat2, CoopMat:
		shared, err = c.feasibleMatrix(caps, p)
	case Scalar, Unfused:
		shared, err = c.feasibleScalar(caps, p)
	default:
		return fmt.Errorf("attention: impl %v is not a path", c.Impl)
	}
	if err != nil {
		return err
	}
	return cmp.Or(c.feasibleSplits(caps, p), argument.FitsShared("attention", caps, c.Impl, shared))
}

// feasibleMatrix is what Feasible says of the matrix paths alone. It returns the bytes of shared memory.
func (c Config) feasibleMatrix(caps *vk.Caps, p Problem) (int, error) {
	shape, err := matrixShape(caps, c.Impl, p.DType)
	if err != nil {
		return 0, err
	}
	m, n := int(shape.M), int(shape.N)
	switch {
	case c.Subgroups < 1 || c.RowTiles < 1 || c.BlockN < 1:
		return 0, unsupported("%v: a tile size of %v is not positive", c.Impl, c)
	case c.KeysFirst && !c.Prefetch:
		return 0, unsupported("%v: keys_first without prefetch", c.Impl)
	case c.BlockN%n != 0:
		return 0, unsupported("%v: block_n=%d is not a multiple of the matrix size %d", c.Impl, c.BlockN, n)
	case c.Impl == CoopMat && c.Subgroups == 1 && chips.LosesLoneIndex(caps):
		return 0, errLoneSubgroup
	}
	if err := argument.FitsWorkgroup("attention", caps, c.Impl, c.Subgroups*int(caps.SubgroupSize)); err != nil {
		return 0, err
	}
	if c.Stripes != 0 {
		return c.stripeBytes(&p, m), c.feasibleDirect(caps, &p, shape)
	}
	k := 0
	if p.Quant != dtype.NoQuant {
		quant, err := quantShape(caps, c.Impl, &p)
		if err != nil {
			return 0, err
		}
		switch k = int(quant.K); {
		case QuantKeys%c.BlockN != 0:
			return 0, unsupported("%v: block_n=%d does not divide the %d keys that share a scale", c.Impl, c.BlockN, QuantKeys)
		case c.Subgroups*c.RowTiles*m > quantPad:
			return 0, unsupported("%v: quant=%v of blocks of %d rows, more than %d", c.Impl, p.Quant, c.Subgroups*c.RowTiles*m, quantPad)
		}
	}
	if err := feasibleFeatures[fwdParams](c.Impl, caps, &p, fwdTensors(&p)); err != nil {
		return 0, err
	}
	shared, err := c.tileBytes(p, m, n, k)
	if err != nil {
		return 0, err
	}
	shared += featureBytes(&p, c.Subgroups*c.RowTiles*m, c.BlockN, c.BlockN)
	if c.Impl == CoopMat {
		shared += c.Subgroups * m * (n + 4) * 4 // scratch, lib/rows_coopmat.glsl
		shared += c.Subgroups * m * n / 2 * 4   // packed, at most
	}
	return shared, nil
}

// tileBytes is the shared memory of a matrix kernel, but for the scratch of the
// coopmat path, or why there is no kernel: the rows of a block pass through it,
// one column of matrices at a time at the least. With Quant k is the depth of the products of int8.
func (c Config) tileBytes(p Problem, m, n, k int) (int, error) {
	row8 := (max(p.HeadDim, p.ValueHeadDim()) + n - 1) / n * n / 8
	rows := c.Subgroups * c.RowTiles * m
	tile, column := 2*c.BlockN*(row8+1), rows*n/8 // in 16 bytes; lib/fwd_plain.glsl
	amax := 0
	if p.Quant != dtype.NoQuant {
		tile = c.BlockN * (row8 + 1 + matrixCells(p.HeadDim, k).rowBytes()/16 + 1) // lib/fwd_quant.glsl
	}
	if p.DType == dtype.Float32 {
		tile *= 2 // lib/tile_f32x2.glsl
		amax = vk.SharedVariables(c.Subgroups * 8)
	}
	if p.DType == dtype.Float32 || c.Splits > 1 {
		column *= 2 // lib/store_float.glsl
	}
	if column > tile {
		return 0, unsupported("%v: one column of matrices of %d rows does not fit in a tile of %d keys", c.Impl, rows, c.BlockN)
	}
	return tile*16 + amax, nil
}

// feasibleScalar is feasibleMatrix for the scalar and unfused paths.
func (c Config) feasibleScalar(caps *vk.Caps, p Problem) (int, error) {
	if c.Threads < 1 || c.ThreadsX < 1 || c.BlockM < 1 || c.BlockN < 1 || c.Depth < 1 {
		return 0, unsupported("%v: a tile size of %v is not positive", c.Impl, c)
	}
	threadsY := c.Threads / c.ThreadsX
	switch {
	case c.Threads%c.ThreadsX != 0:
		return 0, unsupported("%v: %d invocations are not rows of %d", c.Impl, c.Threads, c.ThreadsX)
	case c.BlockM%threadsY != 0 || c.BlockN%c.ThreadsX != 0:
		return 0, unsupported("%v: a tile of %dx%d does not divide among %dx%d invocations", c.Impl, c.BlockM, c.BlockN, threadsY, c.ThreadsX)
	case c.BlockN%4 != 0 || c.Depth%4 != 0:
		return 0, unsupported("%v: block_n=%d or depth=%d is not a multiple of 4", c.Impl, c.BlockN, c.Depth)
	}
	if err := argument.FitsWorkgroup("attention", caps, c.Impl, c.Threads); err != nil {
		return 0, err
	}
	cols4 := (p.ValueHeadDim()/4 + c.ThreadsX - 1) / c.ThreadsX
	qk := (c.BlockM + c.BlockN) * (c.Depth/4 + 1)
	weights := c.BlockM * (c.BlockN/4 + 1)
	if c.Impl == Unfused {
		return max(qk, weights+c.BlockN*cols4*c.ThreadsX) * 16, feasibleFeatures[unfusedParams](c.Impl, caps, &p, 3)
	}
	if err := feasibleFeatures[fwdParams](c.Impl, caps, &p, fwdTensors(&p)); err != nil {
		return 0, err
	}
	if c.ValueRows < 4 || c.ValueRows%4 != 0 || c.BlockN%c.ValueRows != 0 {
		return 0, unsupported("scalar: value_rows=%d is not a multiple of 4 that divides block_n=%d", c.ValueRows, c.BlockN)
	}
	tiles := (max(qk, c.ValueRows*cols4*c.ThreadsX) + weights) * 16
	return tiles + vk.SharedVariables(c.BlockM*c.ThreadsX*4) + featureBytes(&p, c.BlockM, c.BlockN, 0), nil
}

// matrixShape returns the cooperative-matrix shape that a matrix path uses for inputs of type t, or
// an error that names what the device lacks.
func matrixShape(caps *vk.Caps, impl Impl, t dtype.DType) (vk.CoopMatShape, error) {
	var none vk.CoopMatShape
	shape, lack := chips.MatrixShape(caps, t)
	c2 := caps.CoopMat2
	switch {
	case t == dtype.Float32 && !caps.SubgroupOps.Has(vk.SubgroupArithmetic):
		return none, unsupported("%v: %v needs arithmetic among the invocations of a subgroup", impl, t)
	case lack != "":
		return none, unsupported("%v: %s", impl, lack)
	case impl == CoopMat2 && !c2.Reductions:
		return none, unsupported("coopmat2: the device has no cooperative-matrix reductions (VK_NV_cooperative_matrix2)")
	case impl == CoopMat2 && !c2.Conversions:
		return none, unsupported("coopmat2: the device has no cooperative-matrix conversions (VK_NV_cooperative_matrix2)")
	case impl == CoopMat2 && !c2.PerElement:
		return none, unsupported("coopmat2: the device has no cooperative-matrix per-element operations (VK_NV_cooperative_matrix2)")
	}
	return shape, nil
}

// quantShape returns the cooperative-matrix shape of the products of int8, beside matrixShape.
func quantShape(caps *vk.Caps, impl Impl, p *Problem) (vk.CoopMatShape, error) {
	shape, err := matrixShape(caps, impl, p.DType)
	if err != nil {
		return shape, err
	}
	shape, lack := chips.Int8Shape(caps, shape)
	if lack != "" || shape.K > 2*shape.N {
		return shape, unsupported("%v: quant=%v: %s", impl, p.Quant, cmp.Or(lack, "the device's matrices of 8-bit integers are too deep"))
	}
	return shape, nil
}

// feasibleDirect is feasibleMatrix for a configuration with Stripes.
func (c Config) feasibleDirect(caps *vk.Caps, p *Problem, shape vk.CoopMatShape) error {
	switch {
	case c.Stripes < 0 || c.Subgroups%max(c.Stripes, 1) != 0:
		return unsupported("%v: stripes=%d do not divide subgroups=%d", c.Impl, c.Stripes, c.Subgroups)
	case c.Impl != CoopMat2 || p.DType == dtype.Float32 || !p.Plain():
		return unsupported("%v: stripes=%d, but no kernel of stripes for such a problem", c.Impl, c.Stripes)
	case c.Prefetch || c.PeelMask || c.LoadAhead != 0:
		return unsupported("%v: stripes=%d with prefetch, a loop of masked tiles or loads ahead", c.Impl, c.Stripes)
	case c.Splits > 1:
		return unsupported("%v: stripes=%d and splits=%d divide the same keys", c.Impl, c.Stripes, c.Splits)
	case shape.M != shape.N:
		return unsupported("%v: stripes=%d with matrices of %dx%d", c.Impl, c.Stripes, shape.M, shape.N)
	case !c.Detour && (!chips.Quads(caps) || shape.M != 16 || caps.SubgroupSize != 32):
		return unsupported("%v: stripes=%d: the kernel knows where NVIDIA keeps elements of 16x16 matrices, no others", c.Impl, c.Stripes)
	}
	return nil
}

// stripeBytes is the shared memory of attention_fwd_direct: lib/direct_sums.glsl.
func (c *Config) stripeBytes(p *Problem, m int) int {
	if c.Stripes <= 1 {
		return vk.SharedVariables(16, 8)
	}
	rows := c.RowTiles * m
	parts, pass := 4*((p.HeadDim+63)/64), 1
	ld := 4*rows + 2
	switch fit := 1536 / (c.Subgroups * ld); {
	case fit >= parts:
		pass = parts
	case fit >= 4:
		pass = 4
	case fit >= 2:
		pass = 2
	}
	return vk.SharedVariables(16*c.Subgroups*pass*ld, 8*c.Subgroups*rows)
}

// mostStripedKeys is the largest number of keys for which candidates has configurations with Stripes.
// With more keys each subgroup has a long walk, and sharing tiles in shared memory pays.
const mostStripedKeys = 1024

// feasibleFeatures returns an error unless the device has enough storage buffers and push constants
// for a kernel with features that takes tensors and P without them.
func feasibleFeatures[P any](impl Impl, caps *vk.Caps, p *Problem, tensors int) error {
	if p.Plain() {
		return nil
	}
	if n := uint32(tensors + featureTensors); n > caps.MaxStorageBuffers {
		return unsupported("%v: %s take %d storage buffers, more than the device's %d", impl, strings.Join(p.Features(), ", "), n, caps.MaxStorageBuffers)
	}
	if n := uint32(reflect.TypeFor[withFeatures[P]]().Size()); n > caps.MaxPushConstantsBytes {
		return unsupported("%v: %s take %d bytes of push constants, more than the device's %d", impl, strings.Join(p.Features(), ", "), n, caps.MaxPushConstantsBytes)
	}
	return nil
}

// fwdTensors is how many tensors a fused kernel takes beside those of features.
func fwdTensors(p *Problem) int {
	if p.Quant != dtype.NoQuant {
		return 7
	}
	return 5
}

// featureBytes returns the shared memory of the features of fused kernels: bits for tiles of rows
// by keys (lib/dropout.glsl), and a word for each copied column or row. A kernel has one element of
// each array that it does not need.
func featureBytes(p *Problem, rows, keys, copied int) int {
	if p.Plain() {
		return 0
	}
	kept, shown := 1, 1
	if p.Dropout.On() {
		kept = rows * ((keys + 31) / 32)
	}
	if p.KeyMask {
		shown = copied
	}
	return vk.SharedVariables(4*kept, 4*shown)
}

// divides reports whether a kernel can divide the keys of p. Features cannot: a sink, for
// example, counts once for all splits.
func (c *Config) divides(p *Problem) bool {
	return c.Impl != Unfused && c.Stripes == 0 && p.Plain()
}

func (c *Config) feasibleSplits(caps *vk.Caps, p Problem) error {
	if c.Splits < 0 {
		return unsupported("%v: splits=%d is negative", c.Impl, c.Splits)
	}
	if c.Splits <= 1 {
		return nil
	}
	if !c.divides(&p) {
		return unsupported("%v: splits=%d, but no kernel divides keys of such a problem", c.Impl, c.Splits)
	}
	if tiles := (p.SeqKV + c.BlockN - 1) / c.BlockN; c.Splits > tiles {
		return unsupported("%v: splits=%d are more than the %d tiles of seq_kv=%d", c.Impl, c.Splits, tiles, p.SeqKV)
	}
	limit := min(caps.MaxStorageBufferRange, caps.MaxAllocationBytes)
	if bytes := 4 * float64(c.Splits) * float64(p.Batch) * float64(p.NumHeads) * float64(p.SeqQ) * float64(p.HeadDim); bytes > float64(limit) {
		return unsupported("%v: partial results of splits=%d take %.0f bytes, more than the device's %d", c.Impl, c.Splits, bytes, limit)
	}
	return nil
}
