package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// A loop is a small kernel that does one thing as fast as a device can, with its buffers. It belongs
// to one goroutine.
//
//	matrix f16, matrix bf16   products of matrices in registers, float32 sums   FLOP/s
//	matrix int8               products of matrices in registers, int32 sums     OP/s
//	fma f32                   fused multiply-adds in registers                  FLOP/s
//	copy                      reading and writing device memory                 B/s
type loop struct {
	name    string
	unit    string // of work by a second
	d       *vk.Device
	perIter float64 // work of a call with iters = 1
	iters   uint32
	fixed   bool // iters is 1 always
	call    func(c *vk.Cmd, iters uint32)
	check   func(ctx context.Context) error // on values whose result is known exactly; then fills in data
	free    []vk.Tensor
	err     error           // of making tensors
	modules []vk.ModuleInfo // what a checked call ran
}

// copyLoop and fmaLoop are names of loops.
const copyLoop, fmaLoop = "copy", "fma f32"

// loopNames lists the loops that newLoop makes.
var loopNames = []string{"matrix f16", "matrix bf16", "matrix int8", fmaLoop, copyLoop}

// newLoop returns a loop by its name. The error wraps vk.ErrUnsupported if the
// device cannot run it.
func newLoop(d *vk.Device, name string) (l *loop, err error) {
	l = &loop{name: name, unit: "FLOP/s", d: d, iters: 1}
	switch name {
	case fmaLoop:
		err = l.fma()
	case copyLoop:
		err = l.copy()
	case "matrix f16":
		err = l.matrix(dtype.Float16)
	case "matrix int8":
		l.unit = "OP/s"
		err = l.matrix(dtype.Int8)
	default:
		err = l.matrix(dtype.BFloat16)
	}
	if err = cmp.Or(err, l.err); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// record records one call.
func (l *loop) record(c *vk.Cmd, _ int) error {
	l.call(c, l.iters)
	return c.Err()
}

// close may be called on nil.
func (l *loop) close() {
	if l == nil {
		return
	}
	for _, x := range l.free {
		x.Close()
	}
}

// calibrate makes a call take about as long as given. It begins with small calls, so that none lasts
// on a slow device.
func (l *loop) calibrate(ctx context.Context, target time.Duration) error {
	x, err := newTimed(l.d, "calibrate")
	if err != nil {
		return err
	}
	defer x.close()
	const growth, most = 16, 1 << 24
	for l.iters = 1; ; {
		if err := x.record(l.record, 1, 1); err != nil {
			return err
		}
		ns := math.Inf(1)
		for range 2 { // the faster of two, since other work of the machine may delay one
			took, err := x.run(ctx)
			if err != nil {
				return err
			}
			ns = min(ns, took)
		}
		factor := min(float64(target)/max(ns, 100), growth)
		next := uint32(min(math.Ceil(float64(l.iters)*factor), most))
		if l.fixed || factor < 1.5 || next == l.iters {
			return nil
		}
		l.iters = next
	}
}

// tensor makes a tensor that close frees. An error is in l.err.
func (l *loop) tensor(name string, t dtype.DType, n int) vk.Tensor {
	x, err := l.d.NewTensor(name, t, n)
	if err != nil {
		l.err = cmp.Or(l.err, err)
		return x
	}
	l.free = append(l.free, x)
	return x
}

// units returns a number of workgroups of several subgroups that fills the device a few times over.
func units(caps *vk.Caps) uint32 {
	switch {
	case caps.Type == vk.CPU:
		return 1
	case caps.ComputeUnits > 0:
		return caps.ComputeUnits
	}
	return 64 // a large integrated or a middling discrete GPU
}

// loopKernel compiles a module.
func loopKernel[P any](d *vk.Device, name, typ string, spec any, o vk.KernelOptions) (*vk.Kernel[P], error) {
	if !d.Caps().ScalarBlockLayout {
		return nil, unsupported("the device has no scalar block layout")
	}
	module, err := shaders.Get(name, typ)
	if err != nil {
		return nil, err
	}
	return vk.CachedKernel[P](d, module.Name, module.SPIRV, spec, o)
}

// once records and runs a call.
func (l *loop) once(ctx context.Context, iters uint32) error {
	return l.d.Run(ctx, "micro "+l.name, func(c *vk.Cmd) error {
		l.call(c, iters)
		l.modules = c.Modules()
		return nil
	})
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, vk.ErrUnsupported)...)
}

// errDiffers says that a result is wrong.
func errDiffers(what string, i int, got, want float64) error {
	return fmt.Errorf("%s element %d is %v, want %v", what, i, got, want)
}

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
func (l *loop) fma() error {
	caps := l.d.Caps()
	size := workgroupSize(caps)
	kern, err := loopKernel[fmaParams](l.d, "micro_fma", "", workgroupSpec{size}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	groups := 16 * units(caps)
	count := int(groups * size)
	l.perIter = 2 * fmaChains * float64(count)
	out := l.tensor("y", dtype.Float32, count)
	params := fmaParams{Factor: 0.999, Addend: 0.5} // stays between 0 and 500
	l.call = func(c *vk.Cmd, iters uint32) {
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
func (l *loop) copy() error {
	caps := l.d.Caps()
	kern, err := loopKernel[copyParams](l.d, "micro_copy", "", workgroupSpec{workgroupSize(caps)}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	total := int64(copyBytes)
	if caps.Type == vk.CPU {
		total = copyBytesCPU
	}
	total = min(total, int64(min(caps.MaxStorageBufferRange, caps.MaxAllocationBytes)/2)) &^ 15
	l.unit, l.fixed, l.perIter = "B/s", true, 2*float64(total)
	n := int(total / 4)
	src, dst := l.tensor("src", dtype.Float32, n), l.tensor("dst", dtype.Float32, n)
	l.call = func(c *vk.Cmd, _ uint32) {
		kern.Dispatch(c, vk.Groups{X: 32 * units(caps)}, copyParams{uint32(n / 4)}, src, dst)
	}
	l.check = func(ctx context.Context) error { return l.checkCopy(ctx, src.Buffer, dst.Buffer) }
	return nil
}

// checkCopy fills the source with words that differ, since a device may compress memory of zeros, and
// compares the first and the last MiB of the copy.
func (l *loop) checkCopy(ctx context.Context, src, dst *vk.Buffer) error {
	const pieceBytes, checkedBytes = 16 << 20, 1 << 20
	piece := make([]byte, min(src.Bytes(), pieceBytes))
	for i := 0; i < len(piece); i += 4 {
		binary.LittleEndian.PutUint32(piece[i:], uint32(i/4)*2654435761) // Knuth's factor: all bits vary
	}
	for at := int64(0); at < src.Bytes(); at += int64(len(piece)) {
		if err := src.Upload(ctx, at, piece[:min(src.Bytes()-at, int64(len(piece)))]); err != nil {
			return err
		}
	}
	if err := l.once(ctx, 1); err != nil {
		return err
	}
	got := make([]byte, min(len(piece), checkedBytes))
	for _, at := range []int64{0, src.Bytes() - int64(len(got))} {
		if err := dst.Download(ctx, at, got); err != nil {
			return err
		}
		for i := 0; i < len(got); i += 4 {
			want := piece[(int(at)+i)%len(piece):]
			if g, w := binary.LittleEndian.Uint32(got[i:]), binary.LittleEndian.Uint32(want); g != w {
				return errDiffers("the copy:", (int(at)+i)/4, float64(g), float64(w))
			}
		}
	}
	return nil
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

// matrix makes the loop of matrix products.
func (l *loop) matrix(t dtype.DType) error {
	caps := l.d.Caps()
	shape, lack := chips.MatrixShape(caps, t)
	deviation := 1.0
	if t == dtype.Int8 {
		shape, lack = chips.Int8Shape(caps, vk.CoopMatShape{})
		deviation = 40 // most of the 8 bits
	}
	if lack != "" {
		return unsupported("%s", lack)
	}
	m, n, k := int(shape.M), int(shape.N), int(shape.K)
	spec := matrixSpec{WorkgroupSize: matrixSubgroups * caps.SubgroupSize, M: shape.M, N: shape.N, K: shape.K}
	kern, err := loopKernel[matrixParams](l.d, "micro_matrix", t.Short(), spec, chips.MatrixOptions(caps))
	if err != nil {
		return err
	}
	groups := 8 * units(caps)
	l.perIter = 2 * float64(m*n*k) * tilesA * tilesB * matrixSubgroups * float64(groups)
	tensors := []vk.Tensor{l.tensor("a", t, tilesA*m*k), l.tensor("b", t, tilesB*k*n), l.tensor("c", dtype.Float32, int(groups)*matrixSubgroups*tilesA*tilesB*m*n)}
	l.call = func(cmd *vk.Cmd, iters uint32) {
		kern.Dispatch(cmd, vk.Groups{X: groups}, matrixParams{iters}, tensors...)
	}
	l.check = func(ctx context.Context) error {
		if err := l.checkMatrix(ctx, tensors, m, n, k); err != nil {
			return err
		}
		// Normal numbers, since zeros or small integers take less power than data.
		_, err := fillMatrices(ctx, tensors[:2], func(x float64) float64 { return deviation * x })
		return err
	}
	return nil
}

// fillMatrices uploads what draw makes of normal numbers, rounded to the type, and returns it.
func fillMatrices(ctx context.Context, tensors []vk.Tensor, draw func(x float64) float64) (list [][]float32, err error) {
	for i, x := range tensors {
		values := Drawn(&call.Tensor{DType: x.DType, Shape: x.Shape, Draw: draw}, uint64(i))
		list, err = append(list, values), cmp.Or(err, x.UploadRaw(ctx, storage.Bytes(x.DType, values)))
	}
	return list, err
}

// checkMatrix multiplies small integers, whose sums are exact.
func (l *loop) checkMatrix(ctx context.Context, tensors []vk.Tensor, m, n, k int) error {
	const iters = 3
	x, err := fillMatrices(ctx, tensors[:2], func(x float64) float64 { return max(-4, min(math.Round(2*x), 4)) })
	if err != nil {
		return err
	}
	if err := l.once(ctx, iters); err != nil {
		return err
	}
	a, b, c := x[0], x[1], make([]float32, tensors[2].NumElements())
	if err := tensors[2].Download(ctx, c); err != nil {
		return err
	}
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
