package gemm

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/flashvk/flashvk/chips"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// A Group is a list of products of different sizes, with what they have in common.
type Group = problem.Group

// A Product is what the products of a group differ in: sizes and factors.
type Product = problem.Product

// ParseGroup reads the sizes of the products of a group, as in 128x512x64,7x512x64.
func ParseGroup(text string) ([]Product, error) { return problem.ParseGroup(text) }

// Tensors are those of one product of a group. The last three are zero Tensors in groups
// without them.
type Tensors struct{ C, A, B, Residual, X, S vk.Tensor }

// GroupOptions modify a call of MultiplyGroup. The zero value is the default.
type GroupOptions struct {
	// Impl forces a path.
	Impl Impl
	// Config forces a configuration instead of the tuning table's, without copies and
	// with undivided k; it must be feasible. It is for tuning and tests.
	Config *Config
	// Workspace is memory for the table, GroupWorkspace bytes of it, that nothing else uses
	// until the commands have completed, and WorkspaceOffset where it begins, a multiple of
	// 128 bytes. A second call in the same Cmd may have the same, after a Barrier. Nil takes
	// memory of the Cmd.
	Workspace       *vk.Buffer
	WorkspaceOffset int64
}

// MultiplyGroup computes products of different sizes,
//
//	C[i] = epilogue(Alpha[i] * op(A[i]) * op(B[i]) + Beta[i] * C[i])
//
// in one launch, whatever their number, with the epilogue of Multiply:
//
//	products          blocks of C                  workgroups
//	0   3x2 blocks    0 1 2 3 4 5                  0 1 2 3 4 5
//	1   no rows
//	2   1x2 blocks    0 1                                      6 7
//	3   2x2 blocks    0 1 2 3                                      8 9 10 11
//
// A workgroup looks its product up in a table of their sizes and places. Those with the
// longest k come first, so that the last workgroups to finish are short.
//
// Tensors[i] are those of product i of g: C, Residual, X and S are (m, n) of g.Out. A is
// (m, k), with g.TransA (k, m), and B (k, n), with g.TransB (n, k), of g.DType. All may have
// any strides with a contiguous last axis. Every A is a view of one buffer, as the rows of
// the experts are views of all tokens; likewise every B, every C, and so on. A and B may
// be those of several products; outputs have memory of their own, as in Multiply, but may be
// columns of one matrix.
//
// A product with m = 0 or n = 0 does nothing, and its tensors are not looked at; a group
// of nothing else, or of no products, launches nothing. One with k = 0 has no A and B: C =
// epilogue(Beta * C).
//
// Kernels load eight elements of A and B and four of the rest at a time, if offsets and
// strides of all products are multiples of that; one that has others makes all slower.
// Nothing is copied (Pad does that), and k is not divided among workgroups. Float32 operands
// take path scalar, as path coopmat multiplies parts of them, which are copies.
//
// MultiplyGroup records into c and returns, as Multiply does. The table is a part of what is
// recorded: c may be submitted again and again, and tensors and g changed. Other than
// Multiply's, the commands include a transfer, to the workspace. Errors are those of
// Multiply, and name the product.
func MultiplyGroup(c *vk.Cmd, tensors []Tensors, g Group, opt GroupOptions) (err error) {
	defer c.Keep(&err)
	caps := c.Device().Caps()
	config, err := ChooseGroup(caps, g, opt)
	if err != nil {
		return err
	}
	list, extents, err := newGroupArguments(tensors, g)
	if err != nil || len(list) == 0 {
		return err
	}
	if opt.WorkspaceOffset%groupRowBytes != 0 {
		return fmt.Errorf("gemm: workspace_offset=%d of a group is not a multiple of %d", opt.WorkspaceOffset, groupRowBytes)
	}
	memory, err := workspace(c, opt.Workspace, opt.WorkspaceOffset, groupRowBytes*int64(len(list)))
	if err != nil {
		return err
	}
	if err := checkExtents(append(extents, extent{"workspace", noProduct, memory, true})); err != nil {
		return err
	}
	slices.SortStableFunc(list, func(x, y product) int { return cmp.Compare(y.p.K, x.p.K) })
	kernel, err := groupKernel(c.Device(), list, g, config)
	if err != nil {
		return err
	}
	if opt.Workspace != nil {
		c.BarrierToTransfer() // an earlier call may read its table there
	}
	return dispatchGroup(c, kernel, list, config, memory)
}

// GroupWorkspace returns the bytes of device memory that MultiplyGroup takes for its table;
// 0 if it launches nothing.
func GroupWorkspace(g Group) int64 {
	products := 0
	for _, p := range g.Products {
		if !p.Empty() {
			products++
		}
	}
	return groupRowBytes * int64(products)
}

var errGroupParts = unsupported("coopmat: groups of float32 products have no kernel")

// ChooseGroup returns the configuration that MultiplyGroup takes for g on a device. Its
// error wraps ErrUnsupported if no path, or not the forced one, handles g.
func ChooseGroup(caps *vk.Caps, g Group, opt GroupOptions) (Config, error) {
	if err := g.Validate(); err != nil {
		return Config{}, err
	}
	p := g.Common()
	if c := opt.Config; c != nil {
		if c.Pack || c.Fragments || c.Splits > 1 {
			return *c, unsupported("%v: a group has no copies and no splits", c)
		}
		if c.inParts(&p) {
			return *c, errGroupParts
		}
		return *c, c.Feasible(caps, p)
	}
	impl := opt.Impl
	if p.DType == dtype.Float32 {
		if impl == CoopMat {
			return Config{}, errGroupParts
		}
		impl = Scalar
	}
	c, err := search(caps, impl, &p, nil, func(c *Config) (blocks int) {
		for i := range g.Products {
			p := g.Problem(i)
			blocks += c.blocks(caps, &p)
		}
		return blocks
	})
	c.Pack = false
	return c, err
}

// SupportsGroup returns nil if path impl can compute g on a device, and otherwise an error
// that wraps ErrUnsupported and says why not.
func SupportsGroup(caps *vk.Caps, impl Impl, g Group) error {
	_, err := ChooseGroup(caps, g, GroupOptions{Impl: impl})
	return err
}

// groupParams is the push-constant block of lib/gemm_params.glsl with GROUP.
type groupParams struct {
	Row      uint32 `glsl:"row"`
	Products uint32 `glsl:"products"`
}

// groupRow is a row of its table.
type groupRow struct {
	params
	First uint32 `glsl:"first"`
	ASize uint32 `glsl:"a_size"`
	BSize uint32 `glsl:"b_size"`

	Unused [3]uint32 `glsl:"unused"`
}

const groupRowBytes = 128

// groupTable returns the table of products, and how many blocks they have together.
func groupTable(caps *vk.Caps, list []product, config *Config) (table []groupRow, blocks int) {
	for i := range list {
		x := &list[i]
		n := config.blocks(caps, &x.p)
		row := groupRow{params: newParams(x.args, x.p, config, n), First: uint32(blocks), ASize: uint32(x.p.M), BSize: uint32(x.p.N)}
		if x.p.K == 0 {
			row.K, row.ASize, row.BSize = 1, 1, 1 // where the kernel loads, but does not multiply
		}
		table = append(table, row)
		blocks += n
	}
	return table, blocks
}

// groupKernel returns the kernel for products of g: what shapes the code is as the most
// demanding of them needs it.
func groupKernel(d *vk.Device, list []product, g Group, config Config) (*vk.Kernel[groupParams], error) {
	if config.Impl == Scalar {
		module, err := shaders.Get("gemm_scalar_group", g.DType.Short())
		if err != nil {
			return nil, err
		}
		spec := newScalarSpec(list[0].args, list[0].p, config)
		for i := range list {
			spec.Epilogue.join(newEpilogueSpec(list[i].args, list[i].p))
		}
		return vk.CachedKernel[groupParams](d, module.Name, module.SPIRV, spec, vk.KernelOptions{})
	}
	module, err := shaders.Get("gemm_coopmat_group", g.DType.Short())
	if err != nil {
		return nil, err
	}
	spec, err := newMatrixSpec(d.Caps(), list[0].args, list[0].p, config)
	if err != nil {
		return nil, err
	}
	for i := range list {
		x := &list[i]
		spec.Tail = spec.Tail || x.p.K%config.BlockK != 0 || x.p.K == 0
		spec.AAligned = spec.AAligned && aligned(8, x.args.a)
		spec.BAligned = spec.BAligned && aligned(8, x.args.b)
		spec.Epilogue.join(newEpilogueSpec(x.args, x.p))
	}
	return vk.CachedKernel[groupParams](d, module.Name, module.SPIRV, spec, chips.MatrixOptions(d.Caps()))
}

// join makes e serve the epilogue of another product of the group, too.
func (e *epilogueSpec) join(other epilogueSpec) {
	e.OutAligned = e.OutAligned && other.OutAligned
	e.ReadC = e.ReadC || other.ReadC
	e.Scaled = e.Scaled || other.Scaled
}

// dispatchGroup records the table, into memory, and the kernel over all blocks.
func dispatchGroup(c *vk.Cmd, kernel *vk.Kernel[groupParams], list []product, config Config, memory vk.Tensor) error {
	caps := c.Device().Caps()
	table, blocks := groupTable(caps, list, &config)
	limit := caps.MaxWorkgroupCount
	x := min(blocks, int(limit[0]))
	y := (blocks + x - 1) / x
	if y > int(limit[1]) || blocks > math.MaxInt32 {
		return unsupported("products of the group make %d blocks, more than the device's %d x %d workgroups", blocks, limit[0], limit[1])
	}
	data, err := binary.Append(nil, binary.LittleEndian, table)
	if err != nil {
		return err
	}
	c.Write(memory.Buffer, 4*int64(memory.Offset), data)
	c.BarrierFromTransfer()
	t := boundGroup(list)
	outs := t.bound()
	c.Note(func() vk.Note {
		x := vk.Note{Text: fmt.Sprintf("%d products", len(list)), Matrices: config.Impl == CoopMat, DType: list[0].p.DType}
		for i := range list {
			x.FLOPs, x.Bytes = x.FLOPs+list[i].p.FLOPs(), x.Bytes+list[i].p.Bytes()
		}
		return x
	})
	kernel.Dispatch(c, vk.Groups{X: uint32(x), Y: uint32(y), Z: 1}, groupParams{uint32(4 * memory.Offset / groupRowBytes), uint32(len(table))},
		t.a, t.b, outs[0], outs[1], outs[2], outs[3], memory)
	return c.Err()
}
