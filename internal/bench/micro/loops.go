package micro

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// fmaChains is CHAINS of micro_fma.comp.
const fmaChains = 16

// fmaParams is the push-constant block of micro_fma.comp.
type fmaParams struct {
	Iters  uint32  `glsl:"iters"`
	Factor float32 `glsl:"factor"`
	Addend float32 `glsl:"addend"`
}

// workgroupSpec is the specialization of micro_fma.comp and micro_copy.comp.
type workgroupSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
}

// workgroupSize is the size of workgroups of both kernels: four subgroups of 64, where the device
// allows it.
func workgroupSize(caps *vk.Caps) uint32 {
	return min(256, caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0])
}

// fma makes the loop of multiply-adds.
func (l *Loop) fma() error {
	caps := l.d.Caps()
	if !caps.ScalarBlockLayout {
		return unsupported("the device has no scalar block layout")
	}
	size := workgroupSize(caps)
	kern, err := kernel[fmaParams](l.d, "micro_fma", "", workgroupSpec{size}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	groups := 16 * units(caps)
	count := int(groups * size)
	l.work = 2 * fmaChains * float64(count)
	out := l.tensor("y", dtype.Float32, count)
	params := fmaParams{Factor: 0.999, Addend: 0.5} // stays between 0 and 500
	l.record = func(c *vk.Cmd, iters uint32) {
		params.Iters = iters
		kern.Dispatch(c, vk.Groups{X: groups}, params, out)
	}
	l.check = func(ctx context.Context) error {
		// The loop computes 2x + 1 for multiples of 1/count. This is exact in float32 if
		// count is a power of two, and close enough otherwise.
		saved := params
		params.Factor, params.Addend = 2, 1
		err := l.once(ctx, 3)
		params = saved
		if err != nil {
			return err
		}
		got := make([]float32, count)
		if err := out.Download(ctx, got); err != nil {
			return err
		}
		for i, x := range got {
			want := 0.0
			for chain := range fmaChains {
				want += 8*(float64(i)/float64(count)+float64(chain)) + 7
			}
			if math.Abs(float64(x)-want) > 1e-5*want {
				return errDiffers("2x+1 three times:", i, float64(x), want)
			}
		}
		return nil
	}
	return nil
}

// copyParams is the push-constant block of micro_copy.comp.
type copyParams struct {
	N uint32 `glsl:"n"`
}

// Sizes of the copy. That of GPUs is beyond their last-level caches, which have 128 MB at most. A
// CPU device would take too long for it.
const (
	copyBytes    = 512 << 20
	copyBytesCPU = 16 << 20
)

// copy makes the loop that copies.
func (l *Loop) copy() error {
	caps := l.d.Caps()
	if !caps.ScalarBlockLayout {
		return unsupported("the device has no scalar block layout")
	}
	kern, err := kernel[copyParams](l.d, "micro_copy", "", workgroupSpec{workgroupSize(caps)}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	total := int64(copyBytes)
	if caps.Type == vk.CPU {
		total = copyBytesCPU
	}
	total = min(total, int64(min(caps.MaxStorageBufferRange, caps.MaxAllocationBytes)/2)) &^ 15
	l.Unit, l.fixed, l.work = "B/s", true, 2*float64(total)
	n := int(total / 4)
	src, dst := l.tensor("src", dtype.Float32, n), l.tensor("dst", dtype.Float32, n)
	l.record = func(c *vk.Cmd, _ uint32) {
		kern.Dispatch(c, vk.Groups{X: 32 * units(caps)}, copyParams{uint32(n / 4)}, src, dst)
	}
	l.check = func(ctx context.Context) error { return l.checkCopy(ctx, src.Buffer, dst.Buffer) }
	// The words differ, since the device may compress memory of zeros.
	l.fill = func(ctx context.Context) (err error) {
		piece := words(int(min(total, pieceBytes)) / 4)
		for at := int64(0); at < total && err == nil; at += int64(len(piece)) {
			err = src.Buffer.Upload(ctx, at, piece[:min(total-at, int64(len(piece)))])
		}
		return err
	}
	return nil
}

// pieceBytes of the source are alike.
const pieceBytes = 16 << 20

// checkedBytes bytes are compared at the start of the copy, and at its end.
const checkedBytes = 1 << 20

// checkCopy copies words that differ.
func (l *Loop) checkCopy(ctx context.Context, src, dst *vk.Buffer) error {
	want := words(int(min(src.Bytes(), checkedBytes)) / 4)
	end := src.Bytes() - int64(len(want))
	if err := src.Upload(ctx, end, want); err != nil {
		return err
	}
	if err := src.Upload(ctx, 0, want); err != nil {
		return err
	}
	if err := l.once(ctx, 1); err != nil {
		return err
	}
	got := make([]byte, len(want))
	for _, at := range []int64{0, end} {
		if err := dst.Download(ctx, at, got); err != nil {
			return err
		}
		for i := 0; i < len(got); i += 4 {
			if g, w := binary.LittleEndian.Uint32(got[i:]), binary.LittleEndian.Uint32(want[i:]); g != w {
				return errDiffers("the copy:", (int(at)+i)/4, float64(g), float64(w))
			}
		}
	}
	return nil
}

// words returns n different words in little-endian order.
func words(n int) []byte {
	var raw []byte
	for i := range n {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(i)*2654435761) // Knuth's factor: all bits vary
	}
	return raw
}

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
