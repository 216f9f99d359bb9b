package engine

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// Tensors are gemm.Tensors.
type Tensors struct{ A, B, C, Bias, Residual, X, S vk.Tensor }

// MultiplyGroup is gemm.ForwardGroup. MultiplyGroup takes path, configuration and workspace of the
// options. The workspace has a table of GroupWorkspace bytes.
func MultiplyGroup(c *vk.Cmd, tensors []Tensors, problems []Problem, opt Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	caps := c.Device().Caps()
	config, err := ChooseGroup(caps, problems, opt)
	if err != nil {
		return err
	}
	list, extents, err := newGroupArguments(tensors, problems)
	if err != nil || len(list) == 0 {
		return err
	}
	memory, err := workspace(c, opt.Workspace, 0, groupRowBytes*int64(len(list)))
	if err != nil {
		return err
	}
	if err := checkExtents(append(extents, extent{"workspace", noProduct, memory, true})); err != nil {
		return err
	}
	slices.SortStableFunc(list, func(x, y product) int { return cmp.Compare(y.p.K, x.p.K) })
	return dispatchGroup(c, groupKernel(c, list, config), list, config, memory)
}

// GroupWorkspace returns the bytes of device memory of the table, 0 if nothing is launched.
func GroupWorkspace(list []Problem) int64 {
	products := 0
	for _, p := range list {
		if !p.Empty() {
			products++
		}
	}
	return groupRowBytes * int64(products)
}

var errGroupF32x2 = Unsupported("coopmat: groups of float32 products have no kernel")

var errGroupGEMV = Unsupported("gemv: groups have no kernel")

// ChooseGroup returns the configuration that MultiplyGroup takes on a device. Its error
// wraps vk.ErrUnsupported if no path, or not the forced one, handles the products.
func ChooseGroup(caps *vk.Caps, list []Problem, opt Options) (Config, error) {
	p, err := problem.ValidateGroup(list)
	if err != nil {
		return Config{}, err
	}
	if c := opt.Config; c != nil {
		if c.AlignRows || c.PackB || c.Splits > 1 {
			return *c, Unsupported("%v: a group has no copies and no splits", *c)
		}
		if c.isF32x2(&p) {
			return *c, errGroupF32x2
		}
		if c.Impl == GEMV {
			return *c, errGroupGEMV
		}
		return *c, c.Feasible(caps, p)
	}
	impl := opt.Impl
	if impl == GEMV {
		return Config{}, errGroupGEMV
	}
	if p.DType == dtype.Float32 {
		if impl == CoopMat {
			return Config{}, errGroupF32x2
		}
		impl = Scalar
	}
	q := query(caps, impl, &p, nil)
	q.NoFit = true // k is not divided
	q.Blocks = func(c *Config) (blocks int) {
		for i := range list {
			blocks += c.blocks(caps, &list[i])
		}
		return blocks
	}
	c, _, err := products.Choose(caps, &p, q)
	c.AlignRows = false
	return c, err
}

// GroupKernels lists the modules that c runs for a group.
func (c Config) GroupKernels() []string {
	if c.Impl == Scalar {
		return []string{"gemm_scalar_group"}
	}
	return []string{"gemm_coopmat_group"}
}

// groupParams is the push-constant block of lib/gemm_params.glsl with GROUP.
type groupParams struct {
	Row      uint32 `glsl:"row"`
	Products uint32 `glsl:"products"`
}

// groupRow is a row of a group's table.
type groupRow struct {
	Params
	First uint32 `glsl:"first"`
	ASize uint32 `glsl:"a_size"`
	BSize uint32 `glsl:"b_size"`

	Unused [3]uint32 `glsl:"unused"`
}

const groupRowBytes = 128

// groupTable returns the table of products, and the number of blocks of all.
func groupTable(caps *vk.Caps, list []product, config *Config) (table []groupRow, blocks int) {
	for i := range list {
		x := &list[i]
		n := config.blocks(caps, &x.p)
		row := groupRow{Params: NewParams(x.args, x.p, config, n), First: uint32(blocks), ASize: uint32(x.p.M), BSize: uint32(x.p.N)}
		if x.p.K == 0 {
			row.K, row.ASize, row.BSize = 1, 1, 1 // the kernel loads from here, but does not multiply
		}
		table = append(table, row)
		blocks += n
	}
	return table, blocks
}

// groupKernel returns the kernel for products. Its specialization suits the most demanding
// of them.
func groupKernel(c *vk.Cmd, list []product, config Config) *vk.Kernel[groupParams] {
	if config.Impl == Scalar {
		spec := newScalarSpec(list[0].args, list[0].p, config)
		for i := range list {
			spec.Epilogue.join(NewEpilogueSpec(list[i].args, list[i].p))
		}
		return chips.Kernel[groupParams](c, "gemm_scalar_group", list[0].p.DType.Short(), spec, vk.KernelOptions{})
	}
	caps := c.Device().Caps()
	spec, err := NewMatrixSpec(caps, list[0].args, list[0].p, config)
	c.Keep(&err)
	for i := range list {
		x := &list[i]
		spec.Tail = spec.Tail || x.p.K%config.BlockK != 0 || x.p.K == 0
		spec.AAligned = spec.AAligned && argument.Aligned(8, x.args.A)
		spec.BAligned = spec.BAligned && argument.Aligned(8, x.args.B)
		spec.Epilogue.join(NewEpilogueSpec(x.args, x.p))
	}
	return chips.Kernel[groupParams](c, "gemm_coopmat_group", list[0].p.DType.Short(), spec, chips.MatrixOptions(caps))
}

// join adds the demands of the epilogue of another product of the group.
func (e *EpilogueSpec) join(other EpilogueSpec) {
	e.OutAligned = e.OutAligned && other.OutAligned
	e.ReadC = e.ReadC || other.ReadC
	e.Scaled = e.Scaled || other.Scaled
}

// dispatchGroup records the copy of the table to memory, and the kernel over all blocks.
func dispatchGroup(c *vk.Cmd, kernel *vk.Kernel[groupParams], list []product, config Config, memory vk.Tensor) error {
	table, blocks := groupTable(c.Device().Caps(), list, &config)
	groups := Grid(c, blocks, 1, "a group of %d products", len(list))
	data, err := binary.Append(nil, binary.LittleEndian, table)
	if err != nil {
		return err
	}
	c.Write(memory.Buffer, 4*int64(memory.Offset), data)
	t := boundGroup(list)
	outs := t.Bound()
	c.Note(func() vk.Note {
		x := vk.Note{Text: fmt.Sprintf("%d products", len(list)), Matrices: config.Impl == CoopMat, DType: list[0].p.DType}
		for i := range list {
			x.FLOPs, x.Bytes = x.FLOPs+list[i].p.FLOPs(), x.Bytes+list[i].p.Bytes()
		}
		return x
	})
	kernel.Dispatch(c, groups, groupParams{uint32(4 * memory.Offset / groupRowBytes), uint32(len(table))},
		t.A, t.B, outs[0], outs[1], outs[2], outs[3], memory)
	return c.Err()
}

// A product is one of a group that has elements, with its tensors.
type product struct {
	p    Problem
	args Args
}

// newGroupArguments checks the tensors of a group, but not whether tensors of different products
// overlap. The list has the products that have elements, and extents the extents of all tensors.
func newGroupArguments(tensors []Tensors, problems []Problem) (list []product, extents []extent, err error) {
	if len(tensors) != len(problems) {
		return nil, nil, fmt.Errorf("gemm: the group has %d products, and there are tensors for %d", len(problems), len(tensors))
	}
	first := map[string]extent{} // of each tensor, by name
	for i, t := range tensors {
		p := problems[i]
		if p.Empty() {
			continue
		}
		args, err := newArguments(fmt.Sprintf("gemm: product %d of the group", i), t, p, false)
		if err != nil {
			return nil, nil, err
		}
		for _, x := range []extent{
			{"c", i, args.C, true}, {"a", i, args.A, false}, {"b", i, args.B, false},
			{"residual", i, args.R, false}, {"x", i, args.X, !p.ReadsX()}, {"s", i, args.S, !p.Bias},
		} {
			if x.IsZero() {
				continue
			}
			if one, ok := first[x.name]; ok && one.Buffer != x.Buffer {
				return nil, nil, fmt.Errorf("gemm: %v of the group is in buffer %q, %v in %q: it must be one buffer for all products", x, x.Buffer.Name(), one, one.Buffer.Name())
			} else if !ok {
				first[x.name] = x
			}
			extents = append(extents, x)
		}
		list = append(list, product{p, args})
	}
	return list, extents, nil
}

// An extent is a tensor of a product, (1, rows, columns).
type extent struct {
	name    string
	product int
	vk.Tensor
	written bool
}

// noProduct is the product of the extent of the workspace.
const noProduct = -1

// String names the tensor in messages.
func (e extent) String() string {
	if e.product == noProduct {
		return e.name
	}
	return fmt.Sprintf("%s of product %d", e.name, e.product)
}

// checkExtents returns an error if a product writes elements that another product reads or
// writes. newArguments has compared the tensors of the same product.
func checkExtents(list []extent) error {
	written := map[*vk.Buffer]int{} // in the order of the list
	for i := range list {
		root, _, _ := list[i].Memory()
		if _, ok := written[root]; list[i].written && !ok {
			written[root] = i
		}
	}
	list = slices.DeleteFunc(list, func(e extent) bool { root, _, _ := e.Memory(); _, ok := written[root]; return !ok })
	slices.SortStableFunc(list, func(a, b extent) int {
		aRoot, aStart, _ := a.Memory()
		bRoot, bStart, _ := b.Memory()
		return cmp.Or(cmp.Compare(written[aRoot], written[bRoot]), cmp.Compare(aStart, bStart))
	})
	for i := range list {
		e := &list[i]
		root, _, end := e.Memory()
		for j := i + 1; j < len(list); j++ {
			f := &list[j]
			if other, start, _ := f.Memory(); other != root || start >= end {
				break
			}
			if e.product != f.product && (e.written || f.written) && !interleaved(&e.Tensor, &f.Tensor) {
				return fmt.Errorf("gemm: %v of the group overlaps %v: outputs need memory of their own", f, e)
			}
		}
	}
	return nil
}

// interleaved reports whether two matrices of a buffer share no element though their ranges meet:
// both are columns of the same longer rows.
func interleaved(t, u *vk.Tensor) bool {
	stride := t.Strides[1]
	if t.Shape[1] == 1 {
		stride = u.Strides[1]
	}
	if t.Buffer != u.Buffer || t.DType != u.DType || stride == 0 || u.Shape[1] > 1 && u.Strides[1] != stride {
		return false
	}
	a, b := t.Offset%stride, u.Offset%stride
	aEnd, bEnd := a+t.Shape[2], b+u.Shape[2]
	return aEnd <= stride && bEnd <= stride && (aEnd <= b || bEnd <= a)
}

// boundGroup returns tensors that hold the buffers of all products: of each tensor, the first in
// the list. Where all k are 0, C stands for A and B.
func boundGroup(list []product) (t Args) {
	for i := range list {
		a := &list[i].args
		for _, x := range []struct{ to, from *vk.Tensor }{{&t.C, &a.C}, {&t.A, &a.A}, {&t.B, &a.B}, {&t.R, &a.R}, {&t.X, &a.X}, {&t.S, &a.S}} {
			if x.to.IsZero() {
				*x.to = *x.from
			}
		}
	}
	for _, x := range []*vk.Tensor{&t.A, &t.B} {
		if x.IsZero() {
			*x = t.C
		}
	}
	return t
}
