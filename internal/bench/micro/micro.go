// Package micro has small kernels that each do one thing as fast as a device
// can, to know what its peak is:
//
//	matrix f16, matrix bf16   products of matrices in registers, float32 sums   FLOP/s
//	fma f32                   fused multiply-adds in registers                  FLOP/s
//	copy                      reading and writing device memory                 B/s
//
// Each checks its results: a device whose matrices are wrong is found out here,
// before attention is blamed.
package micro

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// A Loop is one such kernel with its buffers. It belongs to one goroutine.
type Loop struct {
	Name string
	Unit string // of Work by a second

	d      *vk.Device
	work   float64 // of a call with iters = 1
	iters  uint32
	fixed  bool // iters is 1 always
	record func(c *vk.Cmd, iters uint32)
	fill   func(ctx context.Context) error // puts data into the inputs; nil: there are none
	check  func(ctx context.Context) error
	free   []vk.Tensor
	err    error // of making tensors
}

// Names lists the loops that New makes.
func Names() []string { return []string{"matrix f16", "matrix bf16", "fma f32", "copy"} }

// New returns a loop by its name. The error wraps vk.ErrUnsupported if the
// device cannot run it.
func New(ctx context.Context, d *vk.Device, name string) (l *Loop, err error) {
	l = &Loop{Name: name, Unit: "FLOP/s", d: d, iters: 1}
	switch name {
	case "matrix f16":
		err = l.matrix(dtype.Float16)
	case "matrix bf16":
		err = l.matrix(dtype.BFloat16)
	case "fma f32":
		err = l.fma()
	case "copy":
		err = l.copy()
	default:
		err = fmt.Errorf("micro: %q is not the name of a loop", name)
	}
	err = cmp.Or(err, l.err, ctx.Err())
	if err == nil && l.fill != nil {
		err = l.fill(ctx)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Record records one call.
func (l *Loop) Record(c *vk.Cmd) error {
	l.record(c, l.iters)
	return c.Err()
}

// Modules returns what a call runs.
func (l *Loop) Modules() ([]vk.ModuleInfo, error) {
	c, err := l.d.NewCmd("micro " + l.Name)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	err = l.Record(c)
	return c.Modules(), err
}

// Work returns the operations or bytes of one call.
func (l *Loop) Work() float64 { return l.work * float64(l.iters) }

// Check runs the loop on values whose result is known exactly and returns an
// error that names the first wrong one.
func (l *Loop) Check(ctx context.Context) error { return l.check(ctx) }

// Close frees the tensors. It may be called on nil.
func (l *Loop) Close() {
	if l == nil {
		return
	}
	for _, x := range l.free {
		x.Close()
	}
	l.free = nil
}

// Calibrate makes a call take about as long as given, and returns the time that it took. It begins
// with small calls, so that none lasts on a slow device.
func (l *Loop) Calibrate(ctx context.Context, target time.Duration) (time.Duration, error) {
	c, err := l.d.NewCmd("micro calibrate")
	if err != nil {
		return 0, err
	}
	defer c.Close()
	timer, err := l.d.NewTimer(2)
	if err != nil {
		return 0, err
	}
	defer timer.Close()
	const growth, most = 16, 1 << 24
	for l.iters = 1; ; {
		c.Reset()
		c.Timestamp(timer, 0)
		if err := l.Record(c); err != nil {
			return 0, err
		}
		c.Barrier()
		c.Timestamp(timer, 1)
		ns := math.Inf(1)
		for range 2 { // the faster of two, since other work of the machine may delay one
			if err := c.Submit(ctx); err != nil {
				return 0, err
			}
			took, err := timer.Nanoseconds(0, 1)
			if err != nil {
				return 0, err
			}
			ns = min(ns, took)
		}
		factor := min(float64(target)/max(ns, 100), growth)
		next := uint32(min(math.Ceil(float64(l.iters)*factor), most))
		if l.fixed || factor < 1.5 || next == l.iters {
			return time.Duration(ns), nil
		}
		l.iters = next
	}
}

// tensor makes a tensor that Close frees. An error is in l.err.
func (l *Loop) tensor(name string, t dtype.DType, n int) vk.Tensor {
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

// kernel compiles a module.
func kernel[P any](d *vk.Device, name, typ string, spec any, o vk.KernelOptions) (*vk.Kernel[P], error) {
	module, err := shaders.Get(name, typ)
	if err != nil {
		return nil, err
	}
	return vk.CachedKernel[P](d, module.Name, module.SPIRV, spec, o)
}

// once records and runs a call.
func (l *Loop) once(ctx context.Context, iters uint32) error {
	return l.d.Run(ctx, "micro "+l.Name, func(c *vk.Cmd) error {
		l.record(c, iters)
		return nil
	})
}

// unsupported returns an error that wraps vk.ErrUnsupported.
func unsupported(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, vk.ErrUnsupported)...)
}

// errDiffers says that a result is wrong.
func errDiffers(what string, i int, got, want float64) error {
	return fmt.Errorf("%s element %d is %v, want %v", what, i, got, want)
}
