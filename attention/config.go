package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
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
	Stripes   int  `word:"stripes%d" on:"coopmat2"`                                       // this many subgroups divide the keys of the same rows, and K and V go straight from memory to registers (fwd_direct.go); 0: each subgroup has its own rows, and tiles are in shared memory
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

// unsupported returns an error that wraps vk.ErrUnsupported. Its text is made when
// it is read: Choose asks about one configuration after the other, in every
// call of Forward, and looks at few of the answers.
func unsupported(format string, args ...any) error {
	if false {
		_ = fmt.Sprintf(format, args...) // go vet checks the calls
	}
	return &unsupportedError{format, args}
}

// errLoneSubgroup is why a workgroup has more than one subgroup on some drivers.
var errLoneSubgroup = unsupported("coopmat: the driver loses the order of shared memory in workgroups of one subgroup")

type unsupportedError struct {
	format string
	args   []any
}

func (e *unsupportedError) Error() string {
	return fmt.Sprintf("attention: %s: %v", fmt.Sprintf(e.format, e.args...), vk.ErrUnsupported)
}

func (e *unsupportedError) Unwrap() error { return vk.ErrUnsupported }

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
	var err error
	switch c.Impl {
	case CoopMat2, CoopMat:
		err = c.feasibleMatrix(caps, p)
	case Scalar, Unfused:
		err = c.feasibleScalar(caps, p)
	default:
		return fmt.Errorf("attention: impl %v is not a path", c.Impl)
	}
	if err != nil {
		return err
	}
	return c.feasibleSplits(caps, p)
}

// feasibleMatrix is Feasible for the matrix paths.
func (c Config) feasibleMatrix(caps *vk.Caps, p Problem) error {
	shape, err := matrixShape(caps, c.Impl, p.DType)
	if err != nil {
		return err
	}
	m, n := int(shape.M), int(shape.N)
	switch {
	case c.Subgroups < 1 || c.RowTiles < 1 || c.BlockN < 1:
		return unsupported("%v: a tile size of %v is not positive", c.Impl, c)
	case c.KeysFirst && !c.Prefetch:
		return unsupported("%v: keys_first without prefetch", c.Impl)
	case c.BlockN%n != 0:
		return unsupported("%v: block_n=%d is not a multiple of the matrix size %d", c.Impl, c.BlockN, n)
	case c.Impl == CoopMat && c.Subgroups == 1 && chips.LosesLoneIndex(caps):
		return errLoneSubgroup
	}
	if err := fitsWorkgroup(caps, c.Impl, c.Subgroups*int(caps.SubgroupSize)); err != nil {
		return err
	}
	if c.Stripes != 0 {
		return c.feasibleDirect(caps, &p, shape)
	}
	if err := feasibleFeatures[fwdParams](c.Impl, caps, &p, 5); err != nil {
		return err
	}
	shared, err := c.tileBytes(p, m, n)
	if err != nil {
		return err
	}
	shared += featureBytes(&p, c.Subgroups*c.RowTiles*m, c.BlockN, c.BlockN)
	if c.Impl == CoopMat {
		shared += c.Subgroups * m * (n + 4) * 4 // scratch, lib/rows_coopmat.glsl
		shared += c.Subgroups * m * n / 2 * 4   // packed, at most
	}
	return fitsShared(caps, c.Impl, shared)
}

// tileBytes is the shared memory of a matrix kernel, but for the scratch of the
// coopmat path, or why there is no kernel: the rows of a block pass through it,
// one column of matrices at a time at the least.
func (c Config) tileBytes(p Problem, m, n int) (int, error) {
	row8 := (max(p.HeadDim, p.ValueHeadDim()) + n - 1) / n * n / 8
	rows := c.Subgroups * c.RowTiles * m
	tile, column := 2*c.BlockN*(row8+1), rows*n/8 // in 16 bytes; lib/tile.glsl
	tops := 0
	if p.DType == dtype.Float32 {
		tile *= 2 // lib/tile_f32x2.glsl
		tops = vk.SharedVariables(c.Subgroups * 8)
	}
	if p.DType == dtype.Float32 || c.Splits > 1 {
		column *= 2 // lib/store_float.glsl
	}
	if column > tile {
		return 0, unsupported("%v: one column of matrices of %d rows does not fit in a tile of %d keys", c.Impl, rows, c.BlockN)
	}
	return tile*16 + tops, nil
}

// feasibleScalar is Feasible for the scalar and unfused paths.
func (c Config) feasibleScalar(caps *vk.Caps, p Problem) error {
	if c.Threads < 1 || c.ThreadsX < 1 || c.BlockM < 1 || c.BlockN < 1 || c.Depth < 1 {
		return unsupported("%v: a tile size of %v is not positive", c.Impl, c)
	}
	threadsY := c.Threads / c.ThreadsX
	switch {
	case c.Threads%c.ThreadsX != 0:
		return unsupported("%v: %d invocations are not rows of %d", c.Impl, c.Threads, c.ThreadsX)
	case c.BlockM%threadsY != 0 || c.BlockN%c.ThreadsX != 0:
		return unsupported("%v: a tile of %dx%d does not divide among %dx%d invocations", c.Impl, c.BlockM, c.BlockN, threadsY, c.ThreadsX)
	case c.BlockN%4 != 0 || c.Depth%4 != 0:
		return unsupported("%v: block_n=%d or depth=%d is not a multiple of 4", c.Impl, c.BlockN, c.Depth)
	}
	if err := fitsWorkgroup(caps, c.Impl, c.Threads); err != nil {
		return err
	}
	cols4 := (p.ValueHeadDim()/4 + c.ThreadsX - 1) / c.ThreadsX
	qk := (c.BlockM + c.BlockN) * (c.Depth/4 + 1)
	weights := c.BlockM * (c.BlockN/4 + 1)
	if c.Impl == Unfused {
		if err := feasibleFeatures[unfusedParams](c.Impl, caps, &p, 3); err != nil {
			return err
		}
		return fitsShared(caps, c.Impl, max(qk, weights+c.BlockN*cols4*c.ThreadsX)*16)
	}
	if err := feasibleFeatures[fwdParams](c.Impl, caps, &p, 5); err != nil {
		return err
	}
	if c.ValueRows < 4 || c.ValueRows%4 != 0 || c.BlockN%c.ValueRows != 0 {
		return unsupported("scalar: value_rows=%d is not a multiple of 4 that divides block_n=%d", c.ValueRows, c.BlockN)
	}
	return fitsShared(caps, c.Impl, (max(qk, c.ValueRows*cols4*c.ThreadsX)+weights)*16+vk.SharedVariables(c.BlockM*c.ThreadsX*4)+featureBytes(&p, c.BlockM, c.BlockN, 0))
}

func fitsWorkgroup(caps *vk.Caps, impl Impl, threads int) error {
	if limit := min(caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0]); threads > int(limit) {
		return unsupported("%v: a workgroup of %d invocations is larger than the device's %d", impl, threads, limit)
	}
	return nil
}

func fitsShared(caps *vk.Caps, impl Impl, bytes int) error {
	if bytes > int(caps.MaxSharedMemoryBytes) {
		return unsupported("%v: %d bytes of shared memory are more than the device's %d", impl, bytes, caps.MaxSharedMemoryBytes)
	}
	return nil
}

// matrixShape returns the cooperative-matrix shape that a matrix path uses for inputs of type t, or
// an error with what the device lacks.
func matrixShape(caps *vk.Caps, impl Impl, t dtype.DType) (vk.CoopMatShape, error) {
	var none vk.CoopMatShape
	shape, lack := chips.MatrixShape(caps, t)
	c2 := caps.CoopMat2
	switch {
	case t == dtype.Float32 && !caps.SubgroupOps.Has(vk.SubgroupArithmetic):
		return none, unsupported("%v: %v needs arithmetic among the invocations of a subgroup", impl, t)
	case t != dtype.BFloat16 && !caps.Storage16: // matrix_layout.comp writes float16
		return none, unsupported("%v: the device has no 16-bit storage", impl)
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
