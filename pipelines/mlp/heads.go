package mlp

import (
	"slices"

	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/fused"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// Limits of the heads that are computed at a time.
const (
	headsBytes = 256 << 20 // of the largest tensor in the workspace
	mostHeads  = 1<<16 - 1 // workgroups along an axis that every device has
)

// heads are the heads [first, first+n) that are computed at a time.
type heads struct{ first, n int }

// divide returns the heads at a time, about the same number each time. Bytes is the memory of one
// head.
func divide(p Problem, o Options, bytes int64) []heads {
	most := o.HeadsAtATime
	if most == 0 {
		most = int(max(headsBytes/max(bytes, 1), 1))
	}
	most = min(most, mostHeads)
	times := (p.heads() + most - 1) / most
	list := make([]heads, times)
	for i := range list {
		first, next := i*p.heads()/times, (i+1)*p.heads()/times
		list[i] = heads{first, next - first}
	}
	return list
}

// of returns the heads h of a tensor as (heads, rows, columns). Axis is the axis of the heads.
// Without heads it returns all of the tensor.
func (h heads) of(t vk.Tensor, axis int, p Problem) vk.Tensor {
	switch {
	case t.IsZero():
		return vk.Tensor{}
	case p.Heads == 0:
		return h.repeat(t)
	case axis == 1:
		t = t.Permute(1, 0, 2)
	}
	t.Shape = slices.Clone(t.Shape)
	t.Shape[0] = h.n
	t.Offset += h.first * t.Strides[0]
	return t
}

// tensors returns the heads h of all tensors. X has no heads.
func (h heads) tensors(t Tensors, p Problem) Tensors {
	return Tensors{
		X: t.X, W1: h.of(t.W1, 0, p), W2: h.of(t.W2, 0, p),
		Y: h.of(t.Y, 1, p), Pre: h.of(t.Pre, 1, p), Hidden: h.of(t.Hidden, 1, p),
	}
}

// gradients returns the heads h of all gradients. DX has no heads.
func (h heads) gradients(g Gradients, p Problem) Gradients {
	return Gradients{DY: h.of(g.DY, 1, p), DX: g.DX, DW1: h.of(g.DW1, 0, p), DW2: h.of(g.DW2, 0, p)}
}

// repeat returns a matrix once for each head.
func (h heads) repeat(x vk.Tensor) vk.Tensor {
	x.Shape, x.Strides = []int{h.n, x.Shape[0], x.Shape[1]}, []int{0, x.Strides[0], x.Strides[1]}
	return x
}

// unit returns how many elements have 16 bytes.
func unit(p Problem) int { return 16 / p.DType.Size() }

// hiddenStride returns the hidden units of a head with the zeros behind them, up to a multiple of
// 16 bytes.
func hiddenStride(p Problem) int { return (p.Hidden + unit(p) - 1) / unit(p) * unit(p) }

// hiddenBytes returns the bytes of the hidden units of a head.
func hiddenBytes(p Problem) int64 {
	return int64(p.Tokens) * int64(hiddenStride(p)) * int64(p.DType.Size())
}

// rowStride returns the distance of rows of the hidden units of these heads in the workspace.
func (h heads) rowStride(p Problem) int { return engine.RowStride(h.n * hiddenStride(p)) }

// bytes returns the memory of that many such rows.
func (h heads) bytes(rows int, p Problem) int64 {
	return int64(rows) * int64(h.rowStride(p)) * int64(p.DType.Size())
}

// rows returns such rows, from byte at of memory on, as a matrix with that many columns.
func (h heads) rows(memory *vk.Buffer, at int64, rows, columns int, p Problem) vk.Tensor {
	t := vk.View(memory, p.DType, rows, columns)
	t.Strides = []int{h.rowStride(p), 1}
	t.Offset = int(at) / p.DType.Size()
	return t
}

// split returns such rows as (heads, rows, columns).
func (h heads) split(memory *vk.Buffer, at int64, rows, columns int, p Problem) vk.Tensor {
	t := h.rows(memory, at, rows, columns, p)
	t.Shape, t.Strides = []int{h.n, rows, columns}, []int{hiddenStride(p), t.Strides[0], 1}
	return t
}

// hiddenUnits returns the rows of all tokens as (heads, tokens, columns).
func (h heads) hiddenUnits(memory *vk.Buffer, at int64, columns int, p Problem) vk.Tensor {
	return h.split(memory, at, p.Tokens, columns, p)
}

// Fused says whether Forward is one kernel or two products.
type Fused uint8

// The choices.
const (
	FusedAuto Fused = iota // two products: one kernel was slower on every device
	FusedOn                // one kernel, or an error that says why not
	FusedOff               // two products
)

var fusedNames = enum.Names[Fused]{FusedAuto: "auto", FusedOn: "on", FusedOff: "off"}

// String returns auto, on or off.
func (f Fused) String() string { return fusedNames.Of(f) }

// fusedConfig returns the configuration that is forced, or nil.
func (o Options) fusedConfig() (*fused.Config, error) {
	if o.FusedConfig == "" {
		return nil, nil
	}
	c, err := fused.ParseConfig(o.FusedConfig)
	if err != nil {
		return nil, wrap(err)
	}
	return &c, nil
}

// newOneKernel returns both products in one kernel if o asks for it, and else nil. An error says why
// the kernel cannot run.
func newOneKernel(caps *vk.Caps, p Problem, o Options) (*fused.Plan, error) {
	config, err := o.fusedConfig()
	switch {
	case err != nil:
		return nil, err
	case o.Fused == FusedOff || o.Fused == FusedAuto && config == nil:
		return nil, nil
	case p.Heads > 0:
		return nil, wrap(argument.Unsupported("fused", "the kernel has no heads"))
	case p.Keep != KeepNothing:
		return nil, wrap(argument.Unsupported("fused", "the kernel does not write pre"))
	case o.Impl != engine.Auto && o.Impl != engine.CoopMat:
		return nil, wrap(argument.Unsupported("fused", "path %v has no such kernel", o.Impl))
	}
	problem := fused.Problem{M: p.Tokens, In: p.In, Hidden: p.Hidden, N: p.Out, DType: p.DType, Out: p.yType()}
	plan, err := fused.Choose(caps, problem, config)
	return &plan, wrap(err)
}

// matrix returns the only matrix of a batch.
func matrix(t vk.Tensor) vk.Tensor {
	t.Shape, t.Strides = t.Shape[1:], t.Strides[1:]
	return t
}
