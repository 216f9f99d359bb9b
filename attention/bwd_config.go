package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// A BackwardConfig is a path of the backward pass with the tile sizes of its kernels: they become
// specialization constants.
type BackwardConfig struct {
	Impl Impl

	// Fused, unless it is zero, is the tile of one kernel that computes all gradients, on the matrix
	// paths. This kernel owns all keys of a head.
	Fused BackwardTile `word:"fused" on:"coopmat2 coopmat"`

	// Stored, unless it is zero, is the tile of a kernel that computes dK and dV as products of P
	// and dX, the gradient of the scores before the Softcap, on the matrix paths. The kernel of dQ
	// stores these: five products instead of seven, for more memory. DKV is not used. The gradient
	// of a bias is a sum of dX, unless p has a Softcap. Chunk heads are stored at a time; 0 stands
	// for as many as fit in 1.25 GiB or Options.Workspace.
	Stored BackwardTile `word:"stored" on:"coopmat2 coopmat"`

	DKV BackwardTile `word:"dkv"` // of the kernel that owns keys, and computes dK and dV
	DQ  BackwardTile `word:"dq"`  // of the kernel that owns rows, and computes dQ

	Chunk int `word:"chunk%d" on:"coopmat2 coopmat"` // of Stored
}

// A BackwardTile is the work of a workgroup of one kernel: it owns BlockM keys (or rows) and walks
// over tiles of BlockN rows (or keys).
type BackwardTile struct {
	// Matrix paths. A workgroup of Subgroups subgroups owns Subgroups*RowTiles*M keys
	// or rows, where M x N x N is the device's matrix shape.
	Subgroups int `word:"sg%d" on:"coopmat2 coopmat" tune:"2 4 8"`
	RowTiles  int `word:"rt%d" on:"coopmat2 coopmat" tune:"1 2"`

	BlockM int `word:"%dx%d BlockN" on:"scalar unfused" tune:"16 32 64 128"` // keys or rows that a workgroup owns
	BlockN int `word:"by%d" tune:"8 16 32 64"`

	// Matrix paths, as in Config.
	Prefetch  bool `word:"prefetch" on:"coopmat2 coopmat" tune:"0 1"`
	PeelMask  bool `word:"peel" on:"coopmat2 coopmat" vary:"0 1"`
	LoadAhead int  `word:"loadahead%d" on:"coopmat2 coopmat" vary:"0 2 4 6"`
	Detour    bool `word:"detour" on:"coopmat2 coopmat"`

	// Scalar path: Threads invocations in rows of ThreadsX own BlockM keys or rows. Shared memory
	// holds Depth columns of all tensors at a time, then StageRows rows of the tensors that the kernel
	// walks over. Unfused path: the same for each of its steps; DQ is the tile of the step that
	// computes weights.
	Threads   int `word:"t%dx%d /ThreadsX" on:"scalar unfused" tune:"64 128 256"`
	ThreadsX  int `on:"scalar unfused" tune:"8 16"`
	Depth     int `word:"depth%d" on:"scalar unfused" vary:"8 16 32 64"`
	StageRows int `word:"rows%d" on:"scalar unfused" vary:"4 8 16 32"`
}

// String names the choices in a few words, which ParseBackwardConfig reads: a path, each tile behind
// the name of its kernel, then numbers of the whole configuration,
//
//	coopmat2 dkv sg4 rt1 by32 peel dq sg8 rt1 by64 prefetch peel
//	coopmat2 fused sg4 rt1 by32
//	coopmat2 stored sg4 rt4 by32 dq sg8 rt1 by64 chunk1
//	scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8
func (c BackwardConfig) String() string { return table.Text(c) }

// ParseBackwardConfig reads what BackwardConfig.String writes.
func ParseBackwardConfig(text string) (BackwardConfig, error) {
	return table.Parse[BackwardConfig]("attention: backward", text)
}

// owned returns how many keys or rows a workgroup owns; 1 if the device has no
// matrices for the path.
func (t *BackwardTile) owned(caps *vk.Caps, impl Impl, format dtype.DType) int {
	if impl == Scalar || impl == Unfused {
		return max(t.BlockM, 1)
	}
	shape, err := matrixShape(caps, impl, format)
	if err != nil {
		return 1
	}
	return max(t.Subgroups*t.RowTiles*int(shape.M), 1)
}

// backwardTensors is the largest number of tensors of a kernel: q, k, v, do, rows, dk and dv.
const backwardTensors = 7

// Feasible returns nil if c can compute the gradients of p on a device, and otherwise the reason,
// which wraps vk.ErrUnsupported. It is the only statement of what the backward kernels demand of a
// configuration.
func (c BackwardConfig) Feasible(caps *vk.Caps, p Problem) error {
	scalar := c.Impl == Scalar || c.Impl == Unfused
	if c.Impl == Unfused {
		p = hideUnseenKeys(p)
	}
	switch {
	case c.Impl != CoopMat2 && c.Impl != CoopMat && !scalar:
		return unsupported("%v: no backward kernel of %v", c.Impl, p.DType)
	case p.DType != dtype.Float32 && !caps.Storage16:
		return unsupported("%v: %v needs 16-bit storage", c.Impl, p.DType)
	case !caps.ScalarBlockLayout:
		return unsupported("%v: the device has no scalar block layout", c.Impl)
	case caps.MaxStorageBuffers < backwardTensors:
		return unsupported("%v: the backward pass takes %d storage buffers, more than the device's %d", c.Impl, backwardTensors, caps.MaxStorageBuffers)
	}
	// The unfused path's block of params is smaller.
	if err := feasibleFeatures[bwdParams](c.Impl, caps, &p, backwardTensors); err != nil {
		return err
	}
	if p.Bias.On {
		if err := biasTile.feasibleScalar(caps, c.Impl, p); err != nil {
			return err
		}
	}
	if c.fused() {
		return c.feasibleFused(caps, &p)
	}
	if c.stored() {
		return c.feasibleStored(caps, &p)
	}
	feasible := BackwardTile.feasibleMatrix
	if scalar {
		feasible = BackwardTile.feasibleScalar
	}
	if err := feasible(c.DKV, caps, c.Impl, p); err != nil {
		return err
	}
	return feasible(c.DQ, caps, c.Impl, p)
}

// feasibleScalar is Feasible for a tile of the scalar path. The unfused path needs no more.
func (t BackwardTile) feasibleScalar(caps *vk.Caps, impl Impl, p Problem) error {
	if t.Threads < 1 || t.ThreadsX < 1 || t.BlockM < 1 || t.BlockN < 1 || t.Depth < 1 || t.StageRows < 1 {
		return unsupported("%v: a tile size of %+v is not positive", impl, t)
	}
	threadsY := t.Threads / t.ThreadsX
	switch {
	case t.Threads%t.ThreadsX != 0:
		return unsupported("%v: %d invocations are not rows of %d", impl, t.Threads, t.ThreadsX)
	case t.BlockM%threadsY != 0 || t.BlockN%t.ThreadsX != 0:
		return unsupported("%v: a tile of %dx%d does not divide among %dx%d invocations", impl, t.BlockM, t.BlockN, threadsY, t.ThreadsX)
	case t.Depth%4 != 0 || t.StageRows%4 != 0 || t.BlockN%t.StageRows != 0:
		return unsupported("%v: depth%d or rows%d is not a multiple of 4, or rows%[3]d does not divide by%[4]d", impl, t.Depth, t.StageRows, t.BlockN)
	}
	if err := argument.FitsWorkgroup("attention", caps, impl, t.Threads); err != nil {
		return err
	}
	cols4 := (max(p.HeadDim, p.ValueHeadDim())/4 + t.ThreadsX - 1) / t.ThreadsX // lib/bwd_scalar.glsl has these sizes
	pair, stage := (t.BlockM+t.BlockN)*(t.Depth/4+1), t.StageRows*cols4*t.ThreadsX
	weights := t.BlockM * (t.BlockN/4 + 1)
	shared := (max(pair, stage)+weights)*16 + max(featureBytes(&p, t.BlockN, t.BlockM, t.BlockN), featureBytes(&p, t.BlockM, t.BlockN, t.BlockN))
	if p.Bias.On {
		shared += vk.SharedVariables(4 * t.BlockN)            // shown, without a key mask, too
		shared += vk.SharedVariables(4 * threadsY * t.BlockN) // column_sums, attention_bwd_dbias.comp
	}
	return argument.FitsShared("attention", caps, impl, shared)
}

// feasibleMatrix is Feasible for a tile of a matrix path.
func (t BackwardTile) feasibleMatrix(caps *vk.Caps, impl Impl, p Problem) error {
	shape, err := matrixShape(caps, impl, p.DType)
	if err != nil {
		return err
	}
	m, n := int(shape.M), int(shape.N)
	threads := t.Subgroups * int(caps.SubgroupSize)
	switch {
	case t.Subgroups < 1 || t.RowTiles < 1 || t.BlockN < 1:
		return unsupported("%v: a tile size of %+v is not positive", impl, t)
	case t.BlockN%n != 0:
		return unsupported("%v: by%d is not a multiple of the matrix size %d", impl, t.BlockN, n)
	case t.BlockN > threads:
		return unsupported("%v: by%d is more than the %d invocations that load its rows' statistics", impl, t.BlockN, threads)
	case impl == CoopMat && t.Subgroups == 1 && chips.LosesLoneIndex(caps):
		return errLoneSubgroup
	}
	if err := argument.FitsWorkgroup("attention", caps, impl, threads); err != nil {
		return err
	}
	row8 := (max(p.HeadDim, p.ValueHeadDim()) + n - 1) / n * n / 8
	own := t.Subgroups * t.RowTiles * m
	tile, column := 2*t.BlockN*(row8+1), own*n/8 // in 16 bytes, lib/tile_bwd.glsl
	if p.DType == dtype.Float32 {
		tile, column = 2*tile, 2*column // lib/tile_bwd_f32x2.glsl
	}
	if column > tile {
		return unsupported("%v: one column of matrices of %d rows does not fit in a tile of %d", impl, own, t.BlockN)
	}
	return argument.FitsShared("attention", caps, impl, t.matrixShared(impl, m, n, p))
}

// matrixShared returns the bytes of shared memory of a kernel of a matrix path, for matrices of m
// by n.
func (t *BackwardTile) matrixShared(impl Impl, m, n int, p Problem) int {
	row8 := (max(p.HeadDim, p.ValueHeadDim()) + n - 1) / n * n / 8
	own := t.Subgroups * t.RowTiles * m
	tile := 2 * t.BlockN * (row8 + 1) * 16     // lib/tile_bwd.glsl
	shared := vk.SharedVariables(t.BlockN * 8) // stats, lib/bwd_dkv_matrix.glsl
	if p.DType == dtype.Float32 {
		tile *= 2                                     // lib/tile_bwd_f32x2.glsl
		shared += vk.SharedVariables(t.Subgroups * 8) // tile_amax
	}
	// Bits of dropout: of own rows by a tile of keys, or the other way round.
	shared += tile + max(featureBytes(&p, t.BlockN, own, t.BlockN), featureBytes(&p, own, t.BlockN, t.BlockN))
	if impl == CoopMat {
		shared += t.Subgroups * m * (n + 4) * 4 // scratch, lib/rows_coopmat.glsl
		shared += t.Subgroups * m * n / 2 * 4   // packed, at most
	}
	return shared
}
