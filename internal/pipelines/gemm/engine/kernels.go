package engine

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// coopMatSpec is the specialization of gemm_coopmat.comp.
type coopMatSpec struct {
	resultsSpec
	F32x2 bool `glsl:"F32X2"`
}

// packedSpec is the specialization of gemm_coopmat_packed.
type packedSpec struct {
	resultsSpec
	Deal
}

// resultsSpec holds the specialization constants of lib/gemm_results.glsl beside.
type resultsSpec struct {
	MatrixSpec
	OutMatrix bool `glsl:"OUT_MATRIX"`
}

// MatrixSpec holds the specialization constants of lib/gemm_matrix.glsl.
type MatrixSpec struct {
	WorkgroupSize uint32       `glsl:"WORKGROUP_SIZE"`
	SubgroupsM    uint32       `glsl:"SUBGROUPS_M"`
	SubgroupsN    uint32       `glsl:"SUBGROUPS_N"`
	MatM          uint32       `glsl:"MAT_M"`
	MatN          uint32       `glsl:"MAT_N"`
	TilesM        uint32       `glsl:"TILES_M"`
	TilesN        uint32       `glsl:"TILES_N"`
	BlockK        uint32       `glsl:"BLOCK_K"`
	Tail          bool         `glsl:"TAIL"`
	LoadAhead     uint32       `glsl:"LOAD_AHEAD"`
	GroupM        uint32       `glsl:"GROUP_M"`
	AByK          bool         `glsl:"A_BY_K"`
	BByK          bool         `glsl:"B_BY_K"`
	AAligned      bool         `glsl:"A_ALIGNED"`
	BAligned      bool         `glsl:"B_ALIGNED"`
	Partial       bool         `glsl:"PARTIAL"`
	Epilogue      EpilogueSpec `glsl:"epilogue"`
}

// EpilogueSpec holds the specialization constants of lib/gemm_params.glsl.
type EpilogueSpec struct {
	OutFormat  uint32 `glsl:"OUT_FORMAT"`
	OutAligned bool   `glsl:"OUT_ALIGNED"`
	ReadC      bool   `glsl:"READ_C"`
	Residual   bool   `glsl:"RESIDUAL"`
	Activation uint32 `glsl:"ACTIVATION"`
	KeepX      bool   `glsl:"KEEP_X"`
	TimesSlope bool   `glsl:"TIMES_SLOPE"`
	SHolds     uint32 `glsl:"S_HOLDS"`
	Scaled     bool   `glsl:"SCALED"`
}

// NewEpilogueSpec returns the constants for the epilogue of p.
func NewEpilogueSpec(args Args, p Problem) EpilogueSpec {
	s := uint32(0)
	switch {
	case p.HasS():
		s = 1
	case p.Bias && args.S.DType == p.Out:
		s = 2
	case p.Bias:
		s = 3
	}
	return EpilogueSpec{
		OutFormat:  chips.Format(p.Out),
		OutAligned: argument.Aligned(4, args.C, args.R, args.X, args.S),
		ReadC:      p.Beta != 0,
		Residual:   p.Residual,
		Activation: uint32(p.Activation.Function()),
		KeepX:      p.WritesX(),
		TimesSlope: p.ReadsX(),
		SHolds:     s,
		Scaled:     p.Scale() != 1,
	}
}

// Params is the push-constant block of lib/gemm_params.glsl.
type Params struct {
	M        uint32  `glsl:"m"`
	N        uint32  `glsl:"n"`
	K        uint32  `glsl:"k"`
	SplitK   uint32  `glsl:"split_k"`
	Splits   uint32  `glsl:"splits"`
	Tiles    uint32  `glsl:"tiles"`
	Alpha    float32 `glsl:"alpha"`
	Beta     float32 `glsl:"beta"`
	AOffset  uint32  `glsl:"a_offset"` // elements, like all that follow
	AStrideB uint32  `glsl:"a_stride_b"`
	AStride  uint32  `glsl:"a_stride"`
	BOffset  uint32  `glsl:"b_offset"`
	BStrideB uint32  `glsl:"b_stride_b"`
	BStride  uint32  `glsl:"b_stride"`
	COffset  uint32  `glsl:"c_offset"`
	CStrideB uint32  `glsl:"c_stride_b"`
	CStride  uint32  `glsl:"c_stride"`
	ROffset  uint32  `glsl:"r_offset"`
	RStrideB uint32  `glsl:"r_stride_b"`
	RStride  uint32  `glsl:"r_stride"`
	XOffset  uint32  `glsl:"x_offset"`
	XStrideB uint32  `glsl:"x_stride_b"`
	XStride  uint32  `glsl:"x_stride"`
	SOffset  uint32  `glsl:"s_offset"`
	SStrideB uint32  `glsl:"s_stride_b"`
	SStride  uint32  `glsl:"s_stride"`
}

// NewParams fills the block for all batches.
func NewParams(args Args, p Problem, config *Config, tiles int) Params {
	splits := max(config.Splits, 1)
	out := Params{
		M: uint32(p.M), N: uint32(p.N), K: uint32(p.K),
		SplitK: uint32(config.splitK(p.K)), Splits: uint32(splits), Tiles: uint32(tiles),
		Alpha: float32(p.Scale()), Beta: float32(p.Beta),
	}
	for _, t := range []struct {
		vk.Tensor
		offset, strideB, stride *uint32
	}{
		{args.A, &out.AOffset, &out.AStrideB, &out.AStride},
		{args.B, &out.BOffset, &out.BStrideB, &out.BStride},
		{args.C, &out.COffset, &out.CStrideB, &out.CStride},
		{args.R, &out.ROffset, &out.RStrideB, &out.RStride},
		{args.X, &out.XOffset, &out.XStrideB, &out.XStride},
		{args.S, &out.SOffset, &out.SStrideB, &out.SStride},
	} {
		if !t.IsZero() {
			*t.offset, *t.strideB, *t.stride = uint32(t.Offset), uint32(t.Strides[0]), uint32(t.Strides[1])
		}
	}
	return out
}

// NewMatrixSpec returns the constants for p on a device.
func NewMatrixSpec(caps *vk.Caps, args Args, p Problem, config Config) (MatrixSpec, error) {
	shape, lack := chips.MatrixShape(caps, p.DType)
	if lack != "" {
		return MatrixSpec{}, Unsupported("coopmat: %s", lack)
	}
	return MatrixSpec{
		WorkgroupSize: uint32(config.SubgroupsM*config.SubgroupsN) * caps.SubgroupSize,
		SubgroupsM:    uint32(config.SubgroupsM),
		SubgroupsN:    uint32(config.SubgroupsN),
		MatM:          shape.M,
		MatN:          shape.N,
		TilesM:        uint32(config.TilesM),
		TilesN:        uint32(config.TilesN),
		BlockK:        uint32(config.BlockK),
		Tail:          p.K%config.BlockK != 0,
		LoadAhead:     uint32(config.LoadAhead),
		GroupM:        uint32(config.GroupM),
		AByK:          !p.TransA,
		BByK:          p.TransB,
		AAligned:      args.panel > 0 || argument.Aligned(8, args.A),
		BAligned:      args.panel > 0 || argument.Aligned(8, args.B),
		Partial:       config.Splits > 1,
		Epilogue:      NewEpilogueSpec(args, p),
	}, nil
}

// outMatrix reports whether results can be written as matrices, as lib/gemm_results.glsl does:
// they have 16 bits, only the sums decide them, their rows are multiples of 16 bytes, and left
// matrices hold elements where accumulators do.
func outMatrix(d *vk.Device, args Args, p *Problem, config *Config) (bool, error) {
	if p.Out == dtype.Float32 || args.panel > 0 || config.Splits > 1 || p.Beta != 0 || p.Bias || p.Residual || p.ReadsX() || !argument.Aligned(8, args.C, args.X) {
		return false, nil
	}
	shape, lack := chips.MatrixShape(d.Caps(), p.DType)
	if lack != "" {
		return false, Unsupported("coopmat: %s", lack)
	}
	layout, err := chips.LayoutOf(d, p.DType, shape)
	return layout.SameAsAcc, err
}

func multiplyMatrix(c *vk.Cmd, args Args, p Problem, config Config) error {
	d := c.Device()
	name := "gemm_coopmat"
	if config.PackB {
		name = "gemm_coopmat_packed"
	}
	spec, err := NewMatrixSpec(d.Caps(), args, p, config)
	if err != nil {
		return err
	}
	results := resultsSpec{MatrixSpec: spec}
	if results.OutMatrix, err = outMatrix(d, args, &p, &config); err != nil {
		return err
	}
	var constants any = coopMatSpec{results, args.panel > 0}
	if config.PackB {
		constants = packedSpec{results, args.Deal.Constants()}
	}
	kernel := chips.Kernel[Params](c, name, p.DType.Short(), constants, chips.MatrixOptions(d.Caps()))
	return Dispatch(c, kernel, args, p, config)
}

// scalarSpec is the specialization of gemm_scalar.comp.
type scalarSpec struct {
	WorkgroupSize uint32       `glsl:"WORKGROUP_SIZE"`
	ThreadsX      uint32       `glsl:"THREADS_X"`
	BlockM        uint32       `glsl:"BLOCK_M"`
	BlockN        uint32       `glsl:"BLOCK_N"`
	BlockK        uint32       `glsl:"BLOCK_K"`
	GroupM        uint32       `glsl:"GROUP_M"`
	AByK          bool         `glsl:"A_BY_K"`
	BByK          bool         `glsl:"B_BY_K"`
	Partial       bool         `glsl:"PARTIAL"`
	Epilogue      EpilogueSpec `glsl:"epilogue"`
}

func newScalarSpec(args Args, p Problem, config Config) scalarSpec {
	return scalarSpec{
		WorkgroupSize: uint32(config.Threads),
		ThreadsX:      uint32(config.ThreadsX),
		BlockM:        uint32(config.BlockM),
		BlockN:        uint32(config.BlockN),
		BlockK:        uint32(config.BlockK),
		GroupM:        uint32(config.GroupM),
		AByK:          !p.TransA,
		BByK:          p.TransB,
		Partial:       config.Splits > 1,
		Epilogue:      NewEpilogueSpec(args, p),
	}
}

func multiplyScalar(c *vk.Cmd, args Args, p Problem, config Config) error {
	kernel := chips.Kernel[Params](c, "gemm_scalar", p.DType.Short(), newScalarSpec(args, p, config), vk.KernelOptions{})
	return Dispatch(c, kernel, args, p, config)
}

// Grid returns at least n workgroups, along two axes. If the device does not take so many, Grid keeps an error in c,
// as recording calls do.
func Grid(c *vk.Cmd, n, z int, what string, args ...any) vk.Groups {
	limit := c.Device().Caps().MaxWorkgroupCount
	x := max(min(n, int(limit[0])), 1)
	y := (n + x - 1) / x
	if y > int(limit[1]) || z > int(limit[2]) || n > math.MaxInt32 {
		err := Unsupported(what+" takes %d x %d workgroups, more than the device's %v", append(args, n, z, limit)...)
		c.Keep(&err)
	}
	return vk.Groups{X: uint32(x), Y: uint32(y), Z: uint32(z)}
}

// Dispatch records a kernel over all blocks, splits and products, as many products
// at a time as the device allows in one Dispatch.
func Dispatch(c *vk.Cmd, kernel *vk.Kernel[Params], args Args, p Problem, config Config) error {
	caps := c.Device().Caps()
	blockM, blockN := config.Block(caps, p.DType)
	tiles := ((p.M + blockM - 1) / blockM) * ((p.N + blockN - 1) / blockN)
	groups := Grid(c, tiles, 1, "m=%d and n=%d", p.M, p.N)
	out := NewParams(args, p, &config, tiles)
	outs := args.Bound()
	if args.A.IsZero() {
		args.A = args.B // a binding must hold something
	}
	splits := max(config.Splits, 1)
	step := max(int(caps.MaxWorkgroupCount[2])/splits, 1)
	if splits > 1 {
		step = p.Batches() // partial sums of all at once: Config.Feasible ensures that they fit
	}
	for first := 0; first < p.Batches(); first += step {
		n := min(step, p.Batches()-first)
		c.Note(func() vk.Note { return args.Note(p, &config, n) })
		groups.Z = uint32(n * splits)
		kernel.Dispatch(c, groups, out, args.A, args.B, outs[0], outs[1], outs[2], outs[3])
		out.AOffset += uint32(n) * out.AStrideB
		out.BOffset += uint32(n) * out.BStrideB
		out.COffset += uint32(n) * out.CStrideB
		out.ROffset += uint32(n) * out.RStrideB
		out.XOffset += uint32(n) * out.XStrideB
		out.SOffset += uint32(n) * out.SStrideB
	}
	return c.Err()
}
