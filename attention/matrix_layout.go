package attention

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// matrixLayoutSpec is the specialization of matrix_layout.comp.
type matrixLayoutSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
}

// layoutKey identifies a probe among the values that a device keeps.
type layoutKey struct {
	format dtype.DType
	shape  vk.CoopMatShape
}

// sameLayout reports whether accumulators and left matrices of a shape hold
// their elements in the same order on the device. It runs matrix_layout.comp
// once for each device, format and shape.
func sameLayout(d *vk.Device, t dtype.DType, shape vk.CoopMatShape) (bool, error) {
	return vk.Cached(d, layoutKey{t, shape}, func() (bool, error) { return probeLayout(d, t, shape) })
}

func probeLayout(d *vk.Device, t dtype.DType, shape vk.CoopMatShape) (same bool, err error) {
	module, err := shaders.Get("matrix_layout", t.Short())
	if err != nil {
		return false, err
	}
	lanes := d.Caps().SubgroupSize
	kernel, err := vk.CachedKernel[struct{}](d, module.Name, module.SPIRV,
		matrixLayoutSpec{WorkgroupSize: lanes, MatM: shape.M, MatN: shape.N}, matrixKernelOptions(d))
	if err != nil {
		return false, err
	}
	n := int(shape.M * shape.N)
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(i) // at most 255: exact in every format
	}
	ctx := context.Background()
	var tensors [3]vk.Tensor
	for i, spec := range []struct {
		name   string
		format dtype.DType
		length int
	}{{"matrix_layout.index", t, n}, {"matrix_layout.index32", dtype.Float32, n}, {"matrix_layout.mismatch", dtype.Float32, int(lanes)}} {
		if tensors[i], err = d.NewTensor(spec.name, spec.format, spec.length); err != nil {
			return false, err
		}
		defer tensors[i].Close()
	}
	for i := range 2 {
		if err := tensors[i].Upload(ctx, numbers); err != nil {
			return false, err
		}
	}
	c, err := d.NewCmd("matrix_layout")
	if err != nil {
		return false, err
	}
	defer c.Close()
	kernel.Dispatch(c, vk.Groups{}, struct{}{}, tensors[0], tensors[1], tensors[2])
	if err := c.Submit(ctx); err != nil {
		return false, fmt.Errorf("attention: matrix layout probe: %w", err)
	}
	result := make([]byte, 4*lanes)
	if err := tensors[2].Buffer.Download(ctx, 0, result); err != nil {
		return false, err
	}
	for i := range lanes {
		if binary.LittleEndian.Uint32(result[4*i:]) != 0 {
			return false, nil
		}
	}
	return true, nil
}
