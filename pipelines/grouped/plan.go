package grouped

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/vk"
)

// Limits of the heads at a time.
const (
	headsBytes = 256 << 20 // of what a head has most of
	mostHeads  = 1<<16 - 1 // workgroups along an axis that every device has
)

// heads are the heads [first, first+n) that are computed at a time.
type heads struct{ first, n int }

// divide returns the heads at a time, about as many each time, of which each has some bytes.
func divide(p Problem, opt Options, bytes int64) ([]heads, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	most := opt.Heads
	if most == 0 {
		most = int(max(headsBytes/max(bytes, 1), 1))
	}
	most = min(most, mostHeads)
	times := (p.Heads + most - 1) / most
	list := make([]heads, times)
	for i := range list {
		first, next := i*p.Heads/times, (i+1)*p.Heads/times
		list[i] = heads{first, next - first}
	}
	return list, nil
}

// of returns the heads of a tensor (all heads, rows, columns).
func (h heads) of(t vk.Tensor) vk.Tensor {
	t.Shape = slices.Clone(t.Shape)
	t.Shape[0] = h.n
	t.Offset += h.first * t.Strides[0]
	return t
}

// ofPre returns the same of pre, whose heads are axis 1, if there is one.
func (h heads) ofPre(pre vk.Tensor) vk.Tensor {
	if pre.IsZero() {
		return none
	}
	return h.of(pre.Permute(1, 0, 2))
}

// repeat returns a matrix as that of every head.
func (h heads) repeat(x vk.Tensor) vk.Tensor {
	x.Shape, x.Strides = []int{h.n, x.Shape[0], x.Shape[1]}, []int{0, x.Strides[0], x.Strides[1]}
	return x
}

// unit returns the elements of 16 bytes.
func unit(p Problem) int { return 16 / p.DType.Size() }

// hiddenStride returns the hidden units of a head with their zeros: 16 bytes are a
// multiple of 8 elements of 16 bits, and of 4 of float32.
func hiddenStride(p Problem) int { return (p.Hidden + unit(p) - 1) / unit(p) * unit(p) }

// hiddenBytes returns the bytes of the hidden units of a head.
func hiddenBytes(p Problem) int64 {
	return int64(p.Tokens) * int64(hiddenStride(p)) * int64(p.DType.Size())
}

// rows returns the matrix (rows, heads * hiddenStride) at a byte of memory.
func (h heads) rows(memory *vk.Buffer, at int64, rows int, p Problem) vk.Tensor {
	t := vk.View(memory, p.DType, rows, h.n*hiddenStride(p))
	t.Strides = []int{h.rowStride(p), 1}
	t.Offset = int(at) / p.DType.Size()
	return t
}

// rowStride returns the distance of rows of such a matrix.
func (h heads) rowStride(p Problem) int { return gemm.RowStride(h.n * hiddenStride(p)) }

// bytes returns the memory of such a matrix.
func (h heads) bytes(rows int, p Problem) int64 {
	return int64(rows) * int64(h.rowStride(p)) * int64(p.DType.Size())
}

// units returns the same of the tokens as (heads, tokens, hidden).
func (h heads) units(memory *vk.Buffer, at int64, p Problem) vk.Tensor {
	return h.split(h.rows(memory, at, p.Tokens, p), p)
}

// weights returns the same of a copy of w1 as (heads, in, hidden).
func (h heads) weights(memory *vk.Buffer, at int64, p Problem) vk.Tensor {
	return h.split(h.rows(memory, at, p.In, p), p)
}

func (h heads) split(t vk.Tensor, p Problem) vk.Tensor {
	t.Shape, t.Strides = []int{h.n, t.Shape[0], p.Hidden}, []int{hiddenStride(p), t.Strides[0], 1}
	return t
}

// A forwardPlan is what Forward runs: parts after one another, all in the same memory.
type forwardPlan struct {
	memory chain.Memory
	parts  []forwardPart
}

// A forwardPart is what Forward runs for some heads: two products, or one narrow product.
type forwardPart struct {
	heads
	fused         bool // narrow alone runs
	narrow        gemm.Problem
	hidden        int64 // where silu(pre) lies
	first, second chain.Product
}

func newForwardPlan(caps *vk.Caps, p Problem, opt Options, keep Keep) (plan forwardPlan, err error) {
	if err := cmp.Or(p.Validate(), keep.Check("grouped", Keeps())); err != nil {
		return plan, err
	}
	one, bytes, err := newForwardPart(caps, p, heads{0, 1}, opt, keep)
	if err != nil {
		return plan, err
	}
	if !one.fused {
		bytes = hiddenBytes(p)
	}
	list, err := divide(p, opt, bytes)
	if err != nil {
		return plan, err
	}
	for _, h := range list {
		part, bytes, err := newForwardPart(caps, p, h, opt, keep)
		if err != nil {
			return plan, err
		}
		plan.memory.Bytes = max(plan.memory.Bytes, bytes)
		plan.parts = append(plan.parts, part)
	}
	return plan, nil
}

// newForwardPart returns what Forward runs for some heads, and the memory of it.
func newForwardPart(caps *vk.Caps, p Problem, h heads, opt Options, keep Keep) (part forwardPart, bytes int64, err error) {
	part.heads = h
	first := gemm.Problem{Batch: h.n, M: p.Tokens, N: p.Hidden, K: p.In, Activation: gemm.SiLU, DType: p.DType, Out: p.DType}
	if keep == KeepPre {
		first.Activation = gemm.SiLUKeep
	}
	if !opt.Products {
		narrow := first
		narrow.Out = opt.yType(p)
		bytes, err := gemm.NarrowWorkspace(caps, narrow, p.Out, gemm.Options{Impl: opt.Impl})
		if err == nil {
			part.fused, part.narrow = true, narrow
			return part, bytes, nil
		}
		if !errors.Is(err, gemm.ErrUnsupported) {
			return part, 0, fmt.Errorf("grouped: %w", err)
		}
	}
	var memory chain.Memory
	part.hidden = memory.Take(h.bytes(p.Tokens, p))
	if part.first, err = chain.NewProduct(caps, "grouped", &memory, first, opt.Impl, gemm.Options{}); err != nil {
		return part, 0, err
	}
	second := gemm.Problem{Batch: h.n, M: p.Tokens, N: p.Out, K: p.Hidden, DType: p.DType, Out: opt.yType(p)}
	part.second, err = chain.NewProduct(caps, "grouped", &memory, second, opt.Impl, gemm.Options{AlignedA: true})
	return part, memory.Bytes, err
}

// record records the outputs of some heads, whose tensors are (heads, rows, columns).
func (f *forwardPart) record(c *vk.Cmd, memory *vk.Buffer, y, x, w1, w2, pre vk.Tensor, p Problem, opt Options) error {
	if f.fused {
		err := gemm.Narrow(c, y, f.repeat(x), w1, w2, p.Out, f.narrow, gemm.Options{Impl: opt.Impl, X: pre, Workspace: memory})
		if err != nil {
			return fmt.Errorf("grouped: %w", err)
		}
		return nil
	}
	hidden := f.units(memory, f.hidden, p)
	if err := f.first.Record(c, memory, hidden, f.repeat(x), w1, pre, none); err != nil {
		return err
	}
	c.Barrier()
	return f.second.Record(c, memory, y, hidden, w2, none, none)
}

// describe says what runs, the same only once.
func (f *forwardPart) describe(caps *vk.Caps, p Problem, impl gemm.Impl) (string, error) {
	if !f.fused {
		return words(f.first.Config(), f.second.Config()), nil
	}
	config, err := gemm.NarrowConfig(caps, f.narrow, p.Out, gemm.Options{Impl: impl})
	return "narrow " + config.String(), err
}

// A backwardPlan is what Backward runs: parts after one another, all in the same memory.
type backwardPlan struct {
	memory chain.Memory
	parts  []backwardPart
}

// A backwardPart is what Backward runs for some heads: dpre and dw2 by three products or by
// one kernel, then dw1 and dx.
type backwardPart struct {
	heads
	w1, dpre int64 // where the copy of w1 and dpre lie
	dw1, dx  chain.Product

	keep   Keep
	fused  bool         // one kernel makes dpre and dw2
	narrow gemm.Problem // of it, which is another one if pre is kept
	sums   int64        // where its workspace lies

	silu               int64 // else, where silu(pre) lies; pre takes the place of dpre before, unless it is kept
	pre, gradient, dw2 chain.Product
	early              bool // silu(pre) comes with pre, for y; else with the gradient
	y                  chain.Product
}

// narrowBackward returns the products of n heads that one kernel keeps, whose sums are of
// the format of dw2.
func narrowBackward(p Problem, n int) gemm.Problem {
	return gemm.Problem{Batch: n, M: p.Tokens, N: p.Hidden, K: p.In, Activation: gemm.SiLU, DType: p.DType, Out: p.Grad}
}

// narrowDSiLU returns the same where pre is kept.
func narrowDSiLU(p Problem, n int) gemm.Problem {
	return gemm.Problem{Batch: n, M: p.Tokens, N: p.Hidden, K: p.Out, TransB: true, Activation: gemm.TimesDSiLU, DType: p.DType, Out: p.Grad}
}

// fusesBackward reports whether one kernel makes dpre and dw2.
func fusesBackward(caps *vk.Caps, p Problem, opt Options) (bool, error) {
	if opt.Products {
		return false, nil
	}
	_, err := gemm.NarrowBackwardConfig(caps, narrowBackward(p, 1), p.Out, gemm.Options{Impl: opt.Impl, AlignedB: true})
	switch {
	case errors.Is(err, gemm.ErrUnsupported):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("grouped: %w", err)
	}
	return true, nil
}

func newBackwardPlan(caps *vk.Caps, p Problem, opt Options, keep Keep) (plan backwardPlan, err error) {
	if err := cmp.Or(p.Validate(), keep.Check("grouped", Keeps())); err != nil {
		return plan, err
	}
	fused, err := fusesBackward(caps, p, opt)
	if err != nil {
		return plan, err
	}
	bytes := hiddenBytes(p)
	if fused {
		bytes /= 2 // dpre has the memory of silu(pre), too
	}
	list, err := divide(p, opt, bytes)
	if err != nil {
		return plan, err
	}
	for _, h := range list {
		part, bytes, err := newBackwardPart(caps, p, h, opt.Impl, keep, fused, false)
		if err != nil {
			return plan, err
		}
		plan.memory.Bytes = max(plan.memory.Bytes, bytes)
		plan.parts = append(plan.parts, part)
	}
	return plan, nil
}

// newBackwardPart returns what Backward runs for some heads, and the memory of it. Early,
// which is not fused, adds the product of y in float32.
func newBackwardPart(caps *vk.Caps, p Problem, h heads, impl gemm.Impl, keep Keep, fused, early bool) (b backwardPart, bytes int64, err error) {
	var memory chain.Memory
	b.heads, b.keep, b.fused, b.early = h, keep, fused, early
	b.dpre, b.w1 = memory.Take(h.bytes(p.Tokens, p)), memory.Take(h.bytes(p.In, p))
	if fused {
		if bytes, err = b.addNarrow(caps, p, impl); err != nil {
			return b, 0, fmt.Errorf("grouped: %w", err)
		}
		b.sums = memory.Take(bytes)
	} else if err := b.addProducts(caps, &memory, p, impl); err != nil {
		return b, 0, err
	}
	n, padded := h.n, hiddenStride(p)
	dw1 := gemm.Problem{Batch: n, M: p.In, N: p.Hidden, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}
	if b.dw1, err = chain.NewProduct(caps, "grouped", &memory, dw1, impl, gemm.Options{AlignedB: true}); err != nil {
		return b, 0, err
	}
	memory.Keep() // they run side by side
	dx := gemm.Problem{M: p.Tokens, N: p.In, K: n * padded, TransB: true, Residual: h.first > 0, DType: p.DType, Out: p.DType}
	b.dx, err = chain.NewProduct(caps, "grouped", &memory, dx, impl, gemm.Options{AlignedA: true, AlignedB: true})
	return b, memory.Bytes, err
}

// addNarrow adds the kernel that makes dpre and dw2, and returns the memory of it.
func (b *backwardPart) addNarrow(caps *vk.Caps, p Problem, impl gemm.Impl) (int64, error) {
	if b.keep == KeepPre {
		b.narrow = narrowDSiLU(p, b.n)
		return gemm.NarrowDSiLUWorkspace(caps, b.narrow)
	}
	b.narrow = narrowBackward(p, b.n)
	return gemm.NarrowBackwardWorkspace(caps, b.narrow, p.Out, gemm.Options{Impl: impl, AlignedB: true})
}

// addProducts adds the products that make dpre and dw2.
func (b *backwardPart) addProducts(caps *vk.Caps, memory *chain.Memory, p Problem, impl gemm.Impl) (err error) {
	b.silu = memory.Take(b.bytes(p.Tokens, p))
	ofPre, ofGradient := gemm.Identity, gemm.TimesDSiLUKeep
	if b.early {
		ofPre, ofGradient = gemm.SiLUKeep, gemm.TimesDSiLU
		y := gemm.Problem{Batch: b.n, M: p.Tokens, N: p.Out, K: p.Hidden, DType: p.DType, Out: dtype.Float32}
		if b.y, err = chain.NewProduct(caps, "grouped", memory, y, impl, gemm.Options{AlignedA: true}); err != nil {
			return err
		}
		memory.Keep()
	}
	for _, x := range []struct {
		to         *chain.Product
		on         bool
		p          gemm.Problem
		out        dtype.DType
		ownA, ownB bool // the operands that are in our memory
	}{
		{&b.pre, b.keep == KeepNothing, gemm.Problem{Batch: b.n, M: p.Tokens, N: hiddenStride(p), K: p.In, Activation: ofPre}, p.DType, false, true},
		{&b.gradient, true, gemm.Problem{Batch: b.n, M: p.Tokens, N: p.Hidden, K: p.Out, TransB: true, Activation: ofGradient}, p.DType, false, false},
		{&b.dw2, true, gemm.Problem{Batch: b.n, M: p.Hidden, N: p.Out, K: p.Tokens, TransA: true}, p.Grad, true, false},
	} {
		if !x.on {
			continue
		}
		x.p.DType, x.p.Out = p.DType, x.out
		if *x.to, err = chain.NewProduct(caps, "grouped", memory, x.p, impl, gemm.Options{AlignedA: x.ownA, AlignedB: x.ownB}); err != nil {
			return err
		}
		memory.Keep() // they run side by side, or copy operands early
	}
	return nil
}

// describe says what runs, in its order, the same only once.
func (b *backwardPart) describe(caps *vk.Caps, p Problem, impl gemm.Impl) (string, error) {
	gradients := words(b.dw1.Config(), b.dx.Config())
	if b.fused && b.keep == KeepPre {
		return "narrow dsilu | " + gradients, nil
	}
	if b.fused {
		config, err := gemm.NarrowBackwardConfig(caps, b.narrow, p.Out, gemm.Options{Impl: impl, AlignedB: true})
		return "narrow " + config.String() + " | " + gradients, err
	}
	var list []gemm.Config
	if b.keep == KeepNothing {
		list = append(list, b.pre.Config())
	}
	if b.early {
		list = append(list, b.y.Config())
	}
	return words(append(list, b.gradient.Config(), b.dw2.Config(), b.dw1.Config(), b.dx.Config())...), nil
}

// words names configurations, the same only once.
func words(configs ...gemm.Config) string {
	var list []string
	for _, c := range slices.Compact(configs) {
		list = append(list, c.String())
	}
	return strings.Join(list, " | ")
}
