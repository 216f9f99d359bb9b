package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// An Impl is a path: one implementation.
type Impl uint8

// The paths. Auto takes the first of the others that supports the problem, on a CPU device
// Scalar before CoopMat.
const (
	Auto Impl = iota
	CoopMat
	Scalar
	GEMV
)

// Impls lists the paths that all kernels made of products have, in the order in which Auto tries them.
func Impls() []Impl { return []Impl{CoopMat, Scalar} }

// ProductImpls lists the paths of a product. Auto tries GEMV for few rows.
func ProductImpls() []Impl { return append(Impls(), GEMV) }

var implNames = enum.Names[Impl]{Auto: "auto", CoopMat: "coopmat", Scalar: "scalar", GEMV: "gemv"}

// String returns the name used by --impl.
func (i Impl) String() string { return implNames.Of(i) }

// ParseImpl accepts the names that String returns.
func ParseImpl(name string) (Impl, error) { return implNames.Parse("gemm: impl", name) }

// A Config is a path with its tile sizes. They become specialization constants.
type Config struct {
	Impl Impl

	// Path coopmat. A workgroup is a grid of SubgroupsM x SubgroupsN subgroups with
	// TilesM x TilesN accumulators each, of the device's matrix shape.
	SubgroupsM int `word:"s%dx%d SubgroupsN" on:"coopmat"`
	SubgroupsN int
	TilesM     int `word:"t%dx%d TilesN" on:"coopmat"`
	TilesN     int

	// Paths scalar and gemv: Threads invocations, ThreadsX in a row, compute BlockM x BlockN
	// elements. Of gemv a row divides k among its invocations, which have the same elements.
	BlockM   int `word:"%dx%d BlockN" on:"scalar gemv"`
	BlockN   int
	Threads  int `word:"t%dx%d /ThreadsX" on:"scalar gemv"`
	ThreadsX int

	BlockK int `word:"k%d"` // depth of a k-tile

	Matrix bool `word:"matrix" on:"gemv"` // path gemv: products on matrices of the device, gemm_gemv_coopmat

	// Path coopmat.
	LoadAhead int  `word:"loadahead%d" on:"coopmat"` // the most matrices of a k-tile that operands are loaded ahead; 0: the compiler's choice
	AlignRows bool `word:"align" on:"coopmat"`       // operands whose rows are not aligned are copied first, align.go
	PackB     bool `word:"packb" on:"coopmat"`       // op(B) is copied into the order in which invocations hold its elements, pack.go

	// All paths.
	GroupM int `word:"g%d"`                // rows of blocks that workgroups take together, shaders/lib/gemm_order.glsl
	Splits int `word:"splits%d" least:"2"` // split-K: workgroups that share a block, with a part of k each. 0 and 1: none; in a row of the tuning table 0 leaves it to Choose
	Rows   int `word:"rows%d"`             // with Splits: the first rows of C, counted through the batch, whose blocks are not shared; whole products in a batch
}

// String names every choice, for tables; ParseConfig reads it.
func (c Config) String() string { return table.Text(c) }

// ParseConfig reads what String returns.
func ParseConfig(text string) (Config, error) { return table.Parse[Config]("gemm", text) }

// Unsupported returns an error that wraps vk.ErrUnsupported.
func Unsupported(format string, args ...any) error {
	return argument.Unsupported("gemm", format, args...)
}

// Block returns how many rows and columns of C a workgroup computes, 1 if the device has no
// matrices for the path.
func (c *Config) Block(caps *vk.Caps, t dtype.DType) (m, n int) {
	if c.Impl != CoopMat {
		return max(c.BlockM, 1), max(c.BlockN, 1)
	}
	shape, lack := chips.MatrixShape(caps, t)
	if lack != "" {
		return 1, 1
	}
	return max(c.SubgroupsM*c.TilesM*int(shape.M), 1), max(c.SubgroupsN*c.TilesN*int(shape.N), 1)
}

// Feasible returns nil if c can compute p on a device, and otherwise the reason, which wraps
// vk.ErrUnsupported. It is the only statement of what the kernels demand of a configuration: the
// tuning table, sweeps and tests call it.
func (c Config) Feasible(caps *vk.Caps, p Problem) error {
	if err := argument.Storage("gemm", caps, p.DType, p.Out); err != nil {
		return err
	}
	if c.BlockK < 1 || c.GroupM < 1 || c.Rows < 0 || c.Splits < 0 || c.Splits > MaxSplits {
		return Unsupported("%v: k%d and g%d must be positive, splits%d at most %d, rows%d not negative", c.Impl, c.BlockK, c.GroupM, c.Splits, MaxSplits, c.Rows)
	}
	switch {
	case p.Ones && c.Impl != GEMV:
		return Unsupported("%v: only path gemv has no a, but ones", c.Impl)
	case p.Batches() == 1 && c.Rows%8 != 0:
		return Unsupported("%v: rows%d is not a multiple of 8", c.Impl, c.Rows)
	case p.Batches() > 1 && c.Rows%p.M != 0:
		return Unsupported("%v: rows%d are no whole products of m=%d", c.Impl, c.Rows, p.M)
	case c.Splits > 1 && c.Splits > c.mostSplits(caps, &p):
		return Unsupported("%v: splits%d of %d products are more than the device's %d workgroups", c.Impl, c.Splits, p.Batches()-c.Rows/p.M, caps.MaxWorkgroupCount[2])
	}
	switch c.Impl {
	case CoopMat:
		return c.feasibleMatrix(caps, p)
	case Scalar:
		return c.feasibleScalar(caps)
	case GEMV:
		return c.feasibleGEMV(caps, &p)
	}
	return fmt.Errorf("gemm: impl %v is not a path", c.Impl)
}

// feasibleMatrix is Feasible for the matrix path.
func (c Config) feasibleMatrix(caps *vk.Caps, p Problem) error {
	shape, lack := chips.MatrixShape(caps, p.DType)
	if lack != "" {
		return Unsupported("coopmat: %s", lack)
	}
	m, n := int(shape.M), int(shape.N)
	switch {
	case c.SubgroupsM < 1 || c.SubgroupsN < 1 || c.TilesM < 1 || c.TilesN < 1:
		return Unsupported("coopmat: a tile size of %v is not positive", c)
	case c.BlockK%n != 0:
		return Unsupported("coopmat: k%d is not a multiple of the matrix size %d", c.BlockK, n)
	case m%8 != 0 || m*n/4%int(caps.SubgroupSize) != 0:
		return Unsupported("coopmat: matrices of %dx%d do not divide among %d invocations", m, n, caps.SubgroupSize)
	}
	if err := argument.FitsWorkgroup("gemm", caps, c.Impl, c.SubgroupsM*c.SubgroupsN*int(caps.SubgroupSize)); err != nil {
		return err
	}
	if err := c.feasiblePackB(caps, &p, m, n); err != nil {
		return err
	}
	if limit := caps.MaxStorageBufferRange; c.isF32x2(&p) {
		c := c.Fit(&p)
		if bytes := c.Memory(caps, &p, &Options{}).Bytes; uint64(bytes) > limit {
			return Unsupported("coopmat: float32 operands as f32x2 take %d bytes, a kernel sees %d", bytes, limit)
		}
	}
	return argument.FitsShared("gemm", caps, c.Impl, c.tileBytes(p, m, n))
}

// tileBytes is the shared memory of the matrix kernel (lib/gemm_operand.glsl,
// lib/gemm_matrix.glsl).
func (c Config) tileBytes(p Problem, m, n int) int {
	exponents := 1 // one also where there are none
	if c.isF32x2(&p) {
		c.BlockK, p.TransA, p.TransB = 2*c.BlockK, false, true
		exponents = (c.SubgroupsM*c.TilesM*m + c.SubgroupsN*c.TilesN*n) / 4
	}
	size := func(rows int, byK bool) int { // in 16 bytes
		if byK {
			return rows * (c.BlockK/8 + 1)
		}
		return c.BlockK * (rows/8 + 1)
	}
	operands := size(c.SubgroupsM*c.TilesM*m, !p.TransA)
	tiles := 1
	if c.PackB {
		tiles = min(c.TilesN, 4) // if rows of C are not aligned, which a Problem does not tell
	} else {
		operands += size(c.SubgroupsN*c.TilesN*n, p.TransB)
	}
	strip := c.SubgroupsM * c.SubgroupsN * m * (tiles*(n/4) + 1)
	return 16 * (max(operands, strip) + exponents)
}

// feasibleScalar is Feasible for the scalar path.
func (c Config) feasibleScalar(caps *vk.Caps) error {
	if c.Threads < 1 || c.ThreadsX < 1 || c.BlockM < 1 || c.BlockN < 1 {
		return Unsupported("scalar: a tile size of %v is not positive", c)
	}
	threadsY := c.Threads / c.ThreadsX
	switch {
	case c.Threads%c.ThreadsX != 0:
		return Unsupported("scalar: %d invocations are not rows of %d", c.Threads, c.ThreadsX)
	case c.BlockM%threadsY != 0 || c.BlockN%c.ThreadsX != 0:
		return Unsupported("scalar: a block of %dx%d does not divide among %dx%d invocations", c.BlockM, c.BlockN, threadsY, c.ThreadsX)
	case c.BlockK%4 != 0:
		return Unsupported("scalar: k%d is not a multiple of 4", c.BlockK)
	}
	if err := argument.FitsWorkgroup("gemm", caps, c.Impl, c.Threads); err != nil {
		return err
	}
	return argument.FitsShared("gemm", caps, c.Impl, (c.BlockM+c.BlockN)*(c.BlockK/4+1)*16)
}

// FitsBeside returns nil if the device has bytes of shared memory besides the shared memory of c.
func (c *Config) FitsBeside(caps *vk.Caps, p *Problem, bytes int) error {
	if shape, lack := chips.MatrixShape(caps, p.DType); c.Impl == CoopMat && lack == "" {
		bytes += c.tileBytes(*p, int(shape.M), int(shape.N))
	}
	return argument.FitsShared("gemm", caps, c.Impl, bytes)
}

// Kernels lists the modules that c runs for p, in order, without gemm_align for operands whose
// rows are not aligned.
func (c Config) Kernels(p Problem) []string {
	list := []string{"gemm_coopmat"}
	switch {
	case c.Impl == Scalar:
		list = []string{"gemm_scalar"}
	case c.Impl == GEMV && c.Matrix:
		list = []string{"gemm_gemv_coopmat"}
	case c.Impl == GEMV:
		list = []string{"gemm_gemv"}
	case c.isF32x2(&p):
		list = []string{"gemm_amax", "gemm_f32x2", "gemm_coopmat"}
	case c.PackB:
		list = []string{"gemm_pack", "gemm_coopmat_packed"}
	}
	if c.Fit(&p).Splits > 1 {
		list = append(list, "gemm_combine")
	}
	return list
}
