package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// Piece is how many elements of k four invocations load.
const Piece = 32

// Sums and operands of a subgroup are in the registers of all its invocations.
const (
	mostVectors  = 32 // vectors of an invocation that are on their way
	mostMatrices = 8  // of sums
)

// FewRows are the sizes of shaders/lib/few_rows.glsl.
type FewRows struct {
	Rows    int // of a block
	Threads int // of a workgroup
	Team    int // invocations that share columns
	Columns int // of a team
	BlockK  int // elements of k of a team at a time
}

// FewRowsSpec is the specialization of what includes shaders/lib/few_rows.glsl.
type FewRowsSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Subgroups     uint32 `glsl:"SUBGROUPS"`
	Team          uint32 `glsl:"TEAM"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
	BlockM        uint32 `glsl:"BLOCK_M"`
	BlockN        uint32 `glsl:"BLOCK_N"`
	BlockK        uint32 `glsl:"BLOCK_K"`
	InPlace       bool   `glsl:"IN_PLACE"`
}

// block returns the rows of a block: half of those of a matrix, or all.
func (f FewRows) block() int {
	if f.Rows <= 8 {
		return 8
	}
	return fewRows
}

// Feasible returns nil if the device can run a path of a package with f, and otherwise an error that wraps vk.ErrUnsupported.
func (f FewRows) Feasible(name string, path fmt.Stringer, caps *vk.Caps, t dtype.DType) error {
	unsupported := func(format string, args ...any) error {
		return argument.Unsupported(name, "%v: %s", path, fmt.Sprintf(format, args...))
	}
	shape, lack := chips.MatrixShape(caps, t)
	lanes := int(caps.SubgroupSize)
	switch {
	case t == dtype.Float32:
		return unsupported("float32 operands do not go into matrices")
	case lack != "":
		return unsupported("%s", lack)
	case f.Team%lanes != 0 || f.BlockK%(f.Team/lanes*Piece) != 0:
		return unsupported("k%d does not divide among the subgroups of %d invocations, %d elements at a time", f.BlockK, f.Team, Piece)
	case f.Columns%int(shape.N) != 0 || f.Columns*4%lanes != 0:
		return unsupported("%d columns of a subgroup are not whole matrices of %d", f.Columns, shape.N)
	}
	full := (f.block() + int(shape.M) - 1) / int(shape.M) * int(shape.M)
	loaded := full // rows, which fill matrices but of NVIDIA
	if chips.Quads(caps) {
		loaded = f.block()
	}
	matrices := full / int(shape.M) * f.Columns / int(shape.N)
	vectors := f.BlockK / (f.Team / lanes * Piece) * ((loaded*4+lanes-1)/lanes + f.Columns*4/lanes)
	if matrices > mostMatrices || vectors > mostVectors {
		return unsupported("%d matrices of sums and %d vectors of an invocation are more than %d and %d", matrices, vectors, mostMatrices, mostVectors)
	}
	if err := argument.FitsWorkgroup(name, caps, path, f.Threads); err != nil {
		return err
	}
	return argument.FitsShared(name, caps, path, f.bytes(caps, t, false)+4*f.Team/lanes*full)
}

// bytes is the shared memory of the subgroups. Where matrices do not lie as NVIDIA's do, pieces pass through them.
func (f FewRows) bytes(caps *vk.Caps, t dtype.DType, inPlace bool) int {
	s := f.spec(caps, t, inPlace)
	rows := int((s.BlockM + s.MatM - 1) / s.MatM * s.MatM)
	part := rows * (f.Columns/4 + 1)
	if !inPlace {
		part = max(part, (f.Columns+rows)*(Piece/8+1))
	}
	return 16 * int(s.Subgroups) * part
}

func (f FewRows) spec(caps *vk.Caps, t dtype.DType, inPlace bool) FewRowsSpec {
	shape, _ := chips.MatrixShape(caps, t)
	lanes := int(caps.SubgroupSize)
	return FewRowsSpec{
		WorkgroupSize: uint32(f.Threads), Subgroups: uint32(f.Threads / lanes), Team: uint32(f.Team / lanes), MatM: shape.M, MatN: shape.N,
		BlockM: uint32(f.block()), BlockN: uint32(f.Threads / f.Team * f.Columns), BlockK: uint32(f.BlockK), InPlace: inPlace,
	}
}

// Spec asks the device whether operands of matrices are in their places.
func (f FewRows) Spec(d *vk.Device, t dtype.DType) (FewRowsSpec, error) {
	shape, _ := chips.MatrixShape(d.Caps(), t)
	inPlace, err := chips.AsksQuads(d, t, shape)
	return f.spec(d.Caps(), t, inPlace), err
}
