package optim

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// Step records one step of all parameters into c. Parameters whose tensors lie in the same
// buffers, and whose gradients and copies have the same formats, are one launch. Launches that
// share a buffer run one after the other.
//
// If MaxNorm is positive, a step is skipped where the norm of the gradients is infinite or NaN.
// The norm is infinite or NaN if a gradient is, or if the sum of squares is beyond float32 (norms
// from 1.8e19 on). Then no tensor changes, the count stays, and Skipped is one more. If MaxNorm is
// 0, nothing is skipped: a NaN in a gradient makes its parameter and its moments NaN, and nothing
// else.
func (a *AdamW) Step(c *vk.Cmd) (err error) {
	defer c.Keep(&err)
	clip := a.p.MaxNorm > 0
	if clip {
		if err := a.recordNorm(c); err != nil {
			return err
		}
	}
	if err := a.recordPrepare(c, clip); err != nil {
		return err
	}
	return a.recordUpdate(c)
}

// normParams is the push-constant block of adamw_norm.comp.
type normParams struct {
	First  uint32 `glsl:"first"`
	Chunks uint32 `glsl:"chunks"`
}

// normSpec is the specialization of adamw_norm.comp.
type normSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Grad16        bool   `glsl:"GRAD_16"`
}

// prepareParams is the push-constant block of adamw_prepare.comp.
type prepareParams struct {
	Count    uint32  `glsl:"count"`
	MaxNorm  float32 `glsl:"max_norm"`
	LogBeta1 float32 `glsl:"log_beta1"`
	LogBeta2 float32 `glsl:"log_beta2"`
}

// prepareSpec is the specialization of adamw_prepare.comp.
type prepareSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Clip          bool   `glsl:"CLIP"`
}

// updateParams is the push-constant block of adamw.comp.
type updateParams struct {
	First         uint32  `glsl:"first"`
	Chunks        uint32  `glsl:"chunks"`
	Beta1         float32 `glsl:"beta1"`
	Beta2         float32 `glsl:"beta2"`
	OneMinusBeta1 float32 `glsl:"one_minus_beta1"`
	OneMinusBeta2 float32 `glsl:"one_minus_beta2"`
	Eps           float32 `glsl:"eps"`
	WeightDecay   float32 `glsl:"weight_decay"`
}

// updateSpec is the specialization of adamw.comp.
type updateSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Grad16        bool   `glsl:"GRAD_16"`
	WriteCopy     bool   `glsl:"WRITE_COPY"`
}

const (
	// threads are the invocations of a workgroup of adamw_norm and adamw.
	threads = 256
	// prepareThreads are the invocations of adamw_prepare, which adds the sums of all pieces: 10,000 for 42
	// million parameters.
	prepareThreads = 1024
)

// workgroup returns want, or the largest power of two below it that the device allows.
func workgroup(caps *vk.Caps, want uint32) uint32 {
	for want > min(caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0]) {
		want /= 2
	}
	return want
}

// tensor returns a view of a whole buffer: kernels take offsets from the table.
func tensor(b *vk.Buffer) vk.Tensor { return vk.View(b, dtype.Float32, int(b.Bytes()/4)) }

func (a *AdamW) recordNorm(c *vk.Cmd) error {
	size := workgroup(a.d.Caps(), threads)
	for i := range a.launches {
		l := &a.launches[i]
		k := chips.Kernel[normParams](c, "adamw_norm", l.format.Short(), normSpec{size, l.grad16}, vk.KernelOptions{})
		table, err := a.table.Slice(chunkBytes*int64(l.first), chunkBytes*int64(l.count))
		if err != nil {
			return err
		}
		sums, err := a.sums.Slice(4*int64(l.first), 4*int64(l.count)) // a slice, so that launches run side by side
		if err != nil {
			return err
		}
		c.Note(func() vk.Note {
			n := float64(l.elements)
			return vk.Note{Text: fmt.Sprintf("%d parameters", l.elements), FLOPs: 3 * n, Bytes: n * l.gradSize()}
		})
		k.Dispatch(c, chips.Groups(a.d.Caps(), l.count, 1), normParams{Chunks: uint32(l.count)}, tensor(table), tensor(l.grad), tensor(sums))
	}
	return c.Err()
}

func (a *AdamW) recordPrepare(c *vk.Cmd, clip bool) error {
	k := chips.Kernel[prepareParams](c, "adamw_prepare", "", prepareSpec{workgroup(a.d.Caps(), prepareThreads), clip}, vk.KernelOptions{})
	params := prepareParams{
		Count: uint32(a.chunks), MaxNorm: float32(a.p.MaxNorm),
		// log(0) is -Inf, and so is its product with the step: 1 - exp(-Inf) = 1.
		LogBeta1: float32(math.Log(a.p.Beta1)), LogBeta2: float32(math.Log(a.p.Beta2)),
	}
	c.Note(func() vk.Note { return vk.Note{Text: fmt.Sprintf("%d sums", a.chunks)} })
	k.Dispatch(c, vk.Groups{X: 1}, params, tensor(a.sums), tensor(a.state))
	return c.Err()
}

func (a *AdamW) recordUpdate(c *vk.Cmd) error {
	h := a.p
	params := updateParams{
		Beta1: float32(h.Beta1), Beta2: float32(h.Beta2),
		OneMinusBeta1: float32(1 - h.Beta1), OneMinusBeta2: float32(1 - h.Beta2),
		Eps: float32(h.Eps), WeightDecay: float32(h.WeightDecay),
	}
	size := workgroup(a.d.Caps(), threads)
	for i := range a.launches {
		l := &a.launches[i]
		k := chips.Kernel[updateParams](c, "adamw", l.format.Short(), updateSpec{size, l.grad16, l.copyTo != nil}, vk.KernelOptions{})
		params.First, params.Chunks = uint32(l.first), uint32(l.count)
		to := l.copyTo
		if to == nil {
			to = l.param // a binding must hold something; the kernel does not touch it
		}
		c.Note(func() vk.Note {
			n, each := float64(l.elements), 24+l.gradSize()
			if l.copyTo != nil {
				each += 2
			}
			return vk.Note{Text: fmt.Sprintf("%d parameters", l.elements), FLOPs: 14 * n, Bytes: n * each}
		})
		k.Dispatch(c, chips.Groups(a.d.Caps(), l.count, 1), params, tensor(a.table), tensor(a.state), tensor(l.param), tensor(l.grad), tensor(l.m), tensor(l.v), tensor(to))
	}
	return c.Err()
}
