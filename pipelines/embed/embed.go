// Package embed takes rows of a table by their numbers, as a model's first layer does with tokens, and
// computes the gradient of the table.
//
//	out[t,:]      = table[ids[t],:]                              forward; 0 for an id outside of the table
//	dtable[row,:] = sum of dout[t,:] over t with ids[t] = row    backward; 0 for a row without tokens
//
//	tensor         shape              format
//	IDs            (tokens)           int32, contiguous
//	Table, DTable  (vocabulary, dim)  Problem.DType, Problem.Grad; any row stride
//	Out, DOut      (tokens, dim)      Problem.Out, any row stride
//
// An id that is not in 0..vocabulary-1, such as -1, is an ignored token: its row of out is 0, and it
// has no part in dtable.
//
// Problem.Accumulate adds to what the output held. Learned positions are a second call of [Forward], with
// positions for IDs. A table that is also the last layer of a model gets both of its gradients so.
//
// The same call gives the same bits, on every device.
//
// Several goroutines may call the functions; a vk.Cmd belongs to one of them.
package embed

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Tensors are what Forward reads and writes. Backward reads IDs.
type Tensors struct {
	IDs, Table vk.Tensor
	Out        vk.Tensor // written
}

// Gradients are what Backward reads and writes: DOut, the gradient of a loss by Out, is read.
type Gradients struct{ DOut, DTable vk.Tensor }

// Options modify a call. The zero value is the default.
type Options struct {
	// Workspace is memory for Backward, at least as many bytes as the function Workspace says. Its
	// content is lost. Calls that share it run one after the other. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
}

// A Problem holds the sizes, formats and options of a call.
type Problem struct {
	Tokens     int
	Vocabulary int          // rows of the table
	Dim        int          // elements of a row
	DType      dtype.DType  // of the table
	Out        dtype.Option // of out and dout; the zero value is DType
	Grad       dtype.Option // of dtable; the zero value is DType
	// Accumulate adds to what the output of the pass held: out forward, dtable backward.
	Accumulate bool
}

// OutDType returns the format of out and dout.
func (p Problem) OutDType() dtype.DType { return p.Out.Or(p.DType) }

// GradDType returns the format of dtable.
func (p Problem) GradDType() dtype.DType { return p.Grad.Or(p.DType) }

// maxRows and maxElements bound tensors: kernels count in 32 bits.
const (
	maxRows     = 1 << 30
	maxElements = math.MaxUint32
)

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Tokens <= 0 || p.Tokens > maxRows:
		return fmt.Errorf("embed: tokens=%d is not in 1..%d", p.Tokens, maxRows)
	case p.Vocabulary <= 0 || p.Vocabulary > maxRows:
		return fmt.Errorf("embed: vocabulary=%d is not in 1..%d", p.Vocabulary, maxRows)
	case p.Dim <= 0:
		return fmt.Errorf("embed: dim=%d is not positive", p.Dim)
	case float64(max(p.Tokens, p.Vocabulary))*float64(p.Dim) > maxElements:
		return fmt.Errorf("embed: %d rows by dim=%d are more than %d elements", max(p.Tokens, p.Vocabulary), p.Dim, uint32(maxElements))
	case !p.DType.Float():
		return fmt.Errorf("embed: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	case !p.OutDType().Float():
		return fmt.Errorf("embed: out=%v is not one of float32, float16, bfloat16", p.OutDType())
	case !p.GradDType().Float():
		return fmt.Errorf("embed: grad=%v is not one of float32, float16, bfloat16", p.GradDType())
	}
	return nil
}

// String describes the problem in a few words.
func (p Problem) String() string {
	s := fmt.Sprintf("%d tokens, %d rows of %d, %v to %v, gradient %v", p.Tokens, p.Vocabulary, p.Dim, p.DType, p.OutDType(), p.GradDType())
	if p.Accumulate {
		s += ", accumulated"
	}
	return s
}

// FLOPs returns one operation for each element of out, a copy or an addition.
func (p Problem) FLOPs() float64 { return float64(p.Tokens) * float64(p.Dim) }

// BackwardFLOPs returns one addition for each element of dout.
func (p Problem) BackwardFLOPs() float64 { return p.FLOPs() }

// Bytes returns the least memory traffic of the forward pass: ids, a row of the table for each token
// and out. Out counts twice if it is accumulated.
func (p Problem) Bytes() float64 {
	out := p.times() * float64(p.OutDType().Size())
	return 4*float64(p.Tokens) + float64(p.Tokens)*float64(p.Dim)*(float64(p.DType.Size())+out)
}

// BackwardBytes returns the memory traffic of the backward pass: ids, dout and all of dtable; if
// dtable is accumulated, twice a row for each token, but no more than all rows.
func (p Problem) BackwardBytes() float64 {
	rows := p.Vocabulary
	if p.Accumulate {
		rows = min(rows, p.Tokens)
	}
	table := p.times() * float64(rows) * float64(p.Dim) * float64(p.GradDType().Size())
	return 4*float64(p.Tokens) + float64(p.Tokens)*float64(p.Dim)*float64(p.OutDType().Size()) + table
}

// times returns how often an element of the output is read or written.
func (p *Problem) times() float64 {
	if p.Accumulate {
		return 2
	}
	return 1
}

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct {
	kernels []string
	space   space
}

// String names the choices in a few words.
func (p Plan) String() string { return fmt.Sprintf("blocks of %d tokens", block) }

// Workspace is how many bytes of memory a call needs: for Backward 16 for each token, and for each block
// of 32 tokens two rows of float32; else 0.
func (p Plan) Workspace() int64 { return p.space.bytes }

// Kernels lists the modules that run, in order.
func (p Plan) Kernels() []string { return p.kernels }

// Choose returns how p would run on a device. Errors about p are as in Forward and Backward.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, _ Options) (Plan, error) {
	if err := cmp.Or(p.Validate(), argument.Pass("embed", pass), argument.Storage("embed", caps, p.DType, p.OutDType(), p.GradDType())); err != nil {
		return Plan{}, err
	}
	if caps.MaxSharedMemoryBytes < 8*tile {
		return Plan{}, argument.Unsupported("embed", "a tile needs %d bytes of shared memory, the device has %d", 8*tile, caps.MaxSharedMemoryBytes)
	}
	rows := func(name string, n int, format dtype.DType) error {
		return fits(caps, name, int64(n)*int64(p.Dim)*int64(format.Size()))
	}
	if pass == kit.Forward {
		return Plan{kernels: []string{"embed_fwd"}}, cmp.Or(rows("table", p.Vocabulary, p.DType), rows("out", p.Tokens, p.OutDType()))
	}
	plan := Plan{kernels: []string{"embed_sort", "embed_fwd", "embed_bwd"}, space: newSpace(&p)}
	if p.Accumulate {
		plan.kernels = []string{"embed_sort", "embed_bwd"}
	}
	err := cmp.Or(rows("dtable", p.Vocabulary, p.GradDType()), rows("dout", p.Tokens, p.OutDType()))
	return plan, cmp.Or(err, fits(caps, "workspace", plan.space.bytes))
}

// fits returns an error unless a kernel sees all bytes of a tensor.
func fits(caps *vk.Caps, name string, bytes int64) error {
	if uint64(bytes) > caps.MaxStorageBufferRange {
		return argument.Unsupported("embed", "%s has %d bytes, a kernel sees %d of a buffer", name, bytes, caps.MaxStorageBufferRange)
	}
	return nil
}

// Supports returns nil if the device can compute p, and otherwise an error: one of Problem.Validate, or
// one that wraps vk.ErrUnsupported and says why not.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns how many bytes Options.Workspace must have, with the errors of Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	plan, err := Choose(caps, p, pass, o)
	return plan.Workspace(), err
}
