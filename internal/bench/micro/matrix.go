package micro

import (
	"context"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// tilesA and tilesB have the values of the constants in micro_matrix.comp.
const tilesA, tilesB = 2, 4

// matrixSubgroups is the number of subgroups in a workgroup: one for each of the
// partitions of a compute unit, on NVIDIA and AMD.
const matrixSubgroups = 4

// matrixParams is the push-constant block of micro_matrix.comp.
type matrixParams struct {
	Iters uint32 `glsl:"iters"`
}

// matrixSpec is the specialization of micro_matrix.comp.
type matrixSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	M             uint32 `glsl:"MAT_M"`
	N             uint32 `glsl:"MAT_N"`
	K             uint32 `glsl:"MAT_K"`
}

// matrixShape returns the largest shape of matrices of a type with float32 sums.
func matrixShape(caps *vk.Caps, t dtype.DType) (best vk.CoopMatShape, err error) {
	component := vk.F16
	if t == dtype.BFloat16 {
		component = vk.BF16
	}
	switch {
	case !caps.CoopMat:
		return best, unsupported("the device has no VK_KHR_cooperative_matrix")
	case t == dtype.Float16 && !caps.Float16:
		return best, unsupported("the device has no float16 arithmetic")
	case t == dtype.BFloat16 && !caps.BFloat16CoopMat:
		return best, unsupported("the device has no bfloat16 cooperative matrices")
	case caps.APIVersion < vk.MakeVersion(1, 3, 0) || !caps.VulkanMemoryModel || !caps.Int16 || !caps.Storage16 || !caps.ScalarBlockLayout:
		return best, unsupported("the device lacks Vulkan 1.3, its memory model, 16-bit integers and storage, or scalar block layout")
	case !caps.SubgroupSizeControl || !caps.ComputeFullSubgroups:
		return best, unsupported("the device cannot promise full subgroups")
	}
	for _, s := range caps.CoopMatShapes {
		usable := s.Scope == vk.ScopeSubgroup && s.A == component && s.B == component && s.C == vk.F32 && s.Result == vk.F32
		if usable && s.M*s.N*s.K > best.M*best.N*best.K {
			best = s
		}
	}
	if best.M == 0 {
		return best, unsupported("no %v cooperative-matrix shape of the device has float32 sums", component)
	}
	return best, nil
}

// matrix makes the loop of matrix products.
func (l *Loop) matrix(t dtype.DType) error {
	caps := l.d.Caps()
	shape, err := matrixShape(caps, t)
	if err != nil {
		return err
	}
	m, n, k := int(shape.M), int(shape.N), int(shape.K)
	spec := matrixSpec{WorkgroupSize: matrixSubgroups * caps.SubgroupSize, M: shape.M, N: shape.N, K: shape.K}
	kern, err := kernel[matrixParams](l.d, "micro_matrix", t.Short(), spec, vk.KernelOptions{SubgroupSize: caps.SubgroupSize, FullSubgroups: true})
	if err != nil {
		return err
	}
	groups := 8 * units(caps)
	l.work = 2 * float64(m*n*k) * tilesA * tilesB * matrixSubgroups * float64(groups)
	tensors := []vk.Tensor{l.tensor("a", t, tilesA*m*k), l.tensor("b", t, tilesB*k*n), l.tensor("c", dtype.Float32, int(groups)*matrixSubgroups*tilesA*tilesB*m*n)}
	l.record = func(cmd *vk.Cmd, iters uint32) {
		kern.Dispatch(cmd, vk.Groups{X: groups}, matrixParams{iters}, tensors...)
	}
	// Normal numbers, since zeros or small integers take less power than data.
	l.fill = func(ctx context.Context) error {
		return fillMatrices(ctx, tensors[:2], func(rng *rand.Rand) float32 { return float32(rng.NormFloat64()) })
	}
	l.check = func(ctx context.Context) error {
		if err := l.checkMatrix(ctx, tensors, m, n, k); err != nil {
			return err
		}
		return l.fill(ctx)
	}
	return nil
}

// fillMatrices uploads what next returns, rounded to the type.
func fillMatrices(ctx context.Context, tensors []vk.Tensor, next func(rng *rand.Rand) float32) error {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, x := range tensors {
		values := make([]float32, x.NumElements())
		for i := range values {
			values[i] = x.DType.Round(next(rng))
		}
		if err := x.Upload(ctx, values); err != nil {
			return err
		}
	}
	return nil
}

// checkMatrix multiplies small integers, whose sums are exact.
func (l *Loop) checkMatrix(ctx context.Context, tensors []vk.Tensor, m, n, k int) error {
	const iters = 3
	if err := fillMatrices(ctx, tensors[:2], func(rng *rand.Rand) float32 { return float32(rng.IntN(9) - 4) }); err != nil {
		return err
	}
	if err := l.once(ctx, iters); err != nil {
		return err
	}
	var x [3][]float32
	for i := range x {
		x[i] = make([]float32, tensors[i].NumElements())
		if err := tensors[i].Download(ctx, x[i]); err != nil {
			return err
		}
	}
	a, b, c := x[0], x[1], x[2]
	want := make([]float32, tilesA*tilesB*m*n) // of one subgroup
	for tile := range tilesA * tilesB {
		left, right := a[tile/tilesB*m*k:], b[tile%tilesB*k*n:]
		for row := range m {
			for col := range n {
				sum := float32(0)
				for x := range k {
					sum += left[row*k+x] * right[x*n+col]
				}
				want[tile*m*n+row*n+col] = iters * sum
			}
		}
	}
	for i, got := range c {
		if w := want[i%len(want)]; got != w {
			return errDiffers("the product of small integers:", i, float64(got), float64(w))
		}
	}
	return nil
}
