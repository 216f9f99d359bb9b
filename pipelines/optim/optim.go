// Package optim updates the parameters of a model on the device: AdamW over any number of
// tensors, with the gradients clipped by their global norm.
//
//	norm  = sqrt(sum of grad² over all tensors)
//	g     = grad * min(1, MaxNorm / norm)
//	m     = Beta1 * m + (1 - Beta1) * g
//	v     = Beta2 * v + (1 - Beta2) * g²
//	param = param * (1 - lr * WeightDecay) - lr * (m / (1 - Beta1^t)) / (sqrt(v / (1 - Beta2^t)) + Eps)
//	copy  = param, rounded
//
// One launch updates all tensors that lie in the same buffers. A table on the device has the
// place of each piece of 4096 elements. So a step is one launch if parameters, gradients and
// moments have a buffer each, and one for each tensor if each has buffers of its own. A launch of
// one workgroup counts the step. Clipping adds a pass over the gradients before it:
//
//	kernel         launches       reads                     writes
//	adamw_norm     as adamw       grad                      a sum of squares for each piece
//	adamw_prepare  1              the sums, the step count   norm, scale, the step count, corrections
//	adamw          1 or more      grad, param, m, v         param, m, v, copy
//
// The step count, the learning rate and the norm are on the device. So a recorded step may be
// submitted again and again, also within one Cmd.
//
// The same gradients give the same bits.
//
// The algorithm is Algorithm 2 of Loshchilov and Hutter, Decoupled Weight Decay Regularization
// (arXiv:1711.05101), with the weight decay multiplied by lr as in PyTorch.
package optim

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// Tensors are the tensors of a parameter. All have one shape and are contiguous. Offsets that are
// multiples of 4 elements are fastest.
type Tensors struct {
	Param, M, V vk.Tensor // float32: the master weights and their moments
	Grad        vk.Tensor // float32, float16 or bfloat16
	// Copy may be left out. The step writes Param to it, rounded to its format, float16 or
	// bfloat16, for the next forward pass. A Grad of 16 bits has the same format.
	Copy vk.Tensor
}

// A Param is a parameter of a model.
type Param struct {
	Name string // for errors
	Tensors
	// NoDecay leaves out the weight decay, as is usual for the weights of norms.
	NoDecay bool
}

// AdamW is the optimizer of a list of parameters. An AdamW owns 36 bytes for each piece of 4096
// elements, for at least 64 pieces of each set of buffers that parameters lie in. Its methods are
// for one goroutine at a time.
type AdamW struct {
	d        *vk.Device
	p        Problem
	launches []launch
	chunks   int
	table    *vk.Buffer // chunk for each piece
	sums     *vk.Buffer // float32 for each piece
	state    *vk.Buffer
}

// Offsets in the state, in words, as in shaders/lib/adamw.glsl.
const (
	stateStep = iota
	stateLR
	stateNorm
	stateSkipped
	stateBytes = 32
)

// New returns an optimizer whose step count is 0, and whose learning rate is p's. The caller sets
// the step count before a step that continues a training (SetStep), and another learning rate
// before the steps that have it (SetLR). Parameters keep their tensors; the optimizer keeps none of them open. Close it after
// the last step.
//
// It returns an error naming the tensor if one does not fit, shares memory with one that is
// written, or has more elements than kernels count. It returns an error that wraps
// vk.ErrUnsupported if the device lacks what kernels need.
func New(ctx context.Context, d *vk.Device, params []Param, p Problem) (_ *AdamW, err error) {
	if err := Supports(d.Caps(), p); err != nil {
		return nil, err
	}
	if err := check(params); err != nil {
		return nil, err
	}
	for i := range params {
		if err := argument.Storage("optim", d.Caps(), params[i].Grad.DType, params[i].Copy.DType); err != nil {
			return nil, err
		}
	}
	a := &AdamW{d: d, p: p}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	var table []chunk
	a.launches, table = plan(params)
	a.chunks = len(table)
	data := make([]byte, 0, chunkBytes*len(table))
	for _, c := range table {
		for _, word := range []uint32{c.Param, c.Grad, c.M, c.V, c.Copy, c.Count, c.Flags, c.Unused} {
			data = binary.LittleEndian.AppendUint32(data, word)
		}
	}
	for _, b := range []struct {
		to    **vk.Buffer
		name  string
		bytes int
	}{{&a.table, "chunks", len(data)}, {&a.sums, "sums", 4 * len(table)}, {&a.state, "state", stateBytes}} {
		if *b.to, err = d.NewBuffer("optim."+b.name, int64(b.bytes)); err != nil {
			return nil, fmt.Errorf("optim: %w", err)
		}
	}
	if err := a.table.Upload(ctx, 0, data); err != nil {
		return nil, err
	}
	if err := a.sums.Upload(ctx, 0, make([]byte, a.sums.Bytes())); err != nil {
		return nil, err
	}
	if err := a.state.Upload(ctx, 0, make([]byte, stateBytes)); err != nil {
		return nil, err
	}
	return a, a.SetLR(ctx, p.LR)
}

// A Plan says what runs on a device. It is a kit.Plan.
type Plan struct{ clip bool }

// String names the choices in a few words. There are none.
func (p Plan) String() string { return "adamw" }

// Workspace is 0: the optimizer owns the memory of a step.
func (p Plan) Workspace() int64 { return 0 }

// Kernels lists the modules that run, in order.
func (p Plan) Kernels() []string {
	if p.clip {
		return []string{"adamw_norm", "adamw_prepare", "adamw"}
	}
	return []string{"adamw_prepare", "adamw"}
}

// Choose returns what a step would run on a device. Errors about p are as in New.
func Choose(caps *vk.Caps, p Problem) (Plan, error) {
	plan := Plan{clip: p.MaxNorm > 0}
	if err := p.Validate(); err != nil {
		return plan, err
	}
	return plan, argument.Storage("optim", caps)
}

// Supports returns nil if the device can compute a step, and otherwise why not: an error of
// Problem.Validate, or one that wraps vk.ErrUnsupported.
func Supports(caps *vk.Caps, p Problem) error {
	_, err := Choose(caps, p)
	return err
}

// Close frees the optimizer's own memory once the submissions so far have finished. It
// is idempotent and may be called on nil.
func (a *AdamW) Close() {
	if a != nil {
		a.table.Close()
		a.sums.Close()
		a.state.Close()
	}
}

func (a *AdamW) view(word int, t dtype.DType) vk.Tensor {
	x := vk.View(a.state, t, 1)
	x.Offset = word
	return x
}

// Count is the tensor of one int32 with the number of steps so far, t in the formula.
func (a *AdamW) Count() vk.Tensor { return a.view(stateStep, dtype.Int32) }

// LR is the tensor of one float32 with the learning rate. A Cmd may write it, too.
func (a *AdamW) LR() vk.Tensor { return a.view(stateLR, dtype.Float32) }

// Norm is the tensor of one float32 with the norm of the last step's gradients before clipping.
// It is 0 if MaxNorm is.
func (a *AdamW) Norm() vk.Tensor { return a.view(stateNorm, dtype.Float32) }

// Skipped is the tensor of one int32 with the number of steps that were skipped.
func (a *AdamW) Skipped() vk.Tensor { return a.view(stateSkipped, dtype.Int32) }

// SetScale changes Eps and MaxNorm of the steps that are recorded from now on: they are multiplied by
// scale, as they must be if gradients, M and the root of V are.
func (a *AdamW) SetScale(scale float64) error {
	p := a.p
	p.Eps, p.MaxNorm = p.Eps*scale, p.MaxNorm*scale
	if err := p.Validate(); err != nil {
		return err
	}
	a.p = p
	return nil
}

// SetLR sets the learning rate of the steps that are submitted from now on.
func (a *AdamW) SetLR(ctx context.Context, lr float64) error {
	if math.IsNaN(lr) || lr < 0 || lr > math.MaxFloat32 {
		return fmt.Errorf("optim: lr=%g is not a finite number from 0 on", lr)
	}
	return a.LR().Upload(ctx, []float32{float32(lr)})
}

// SetStep sets the number of steps so far, which is less than MaxStep.
func (a *AdamW) SetStep(ctx context.Context, n int) error {
	if n < 0 || n >= MaxStep {
		return fmt.Errorf("optim: step=%d is not in 0..%d", n, MaxStep-1)
	}
	return a.Count().UploadInts(ctx, []int32{int32(n)})
}

// MaxStep is the last step that float32 counts exactly.
const MaxStep = 1 << 24

// Launches returns how many launches of adamw a step has: the number of sets of buffers that
// parameters lie in.
func (a *AdamW) Launches() int { return len(a.launches) }
