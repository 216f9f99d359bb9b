package xent

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct {
	Tokens, Rows int // the most tokens of a chunk, and rows of W of a product

	p                      Problem
	pass                   kit.Pass
	memory                 chain.Memory
	totals, losses, logits int64 // where they begin in the workspace
	products               map[engine.Problem]*chain.Product
	kernels                []string
}

// String names the choices in a few words.
func (p Plan) String() string {
	if p.p.Dim == 0 {
		return "given logits"
	}
	product := p.products[p.product(opLogits, part{0, p.Tokens}, part{0, p.Rows})]
	return fmt.Sprintf("%d tokens, %d rows at a time: %v", p.Tokens, p.Rows, product.Config())
}

// Workspace is how many bytes of memory a call needs: 4 for each token, its logits for each token of a
// chunk, and what the products need.
func (p Plan) Workspace() int64 { return p.memory.Bytes }

// Kernels lists the modules that run, in order, without gemm_align: whether an operand is copied
// depends on the alignment of its rows, which only the tensors tell.
func (p Plan) Kernels() []string { return p.kernels }

// Supports returns nil if the device can compute p, and otherwise why not: an error that wraps
// vk.ErrUnsupported, or one about p or o.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns how many bytes Options.Workspace must have, with the errors of Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	plan, err := Choose(caps, p, pass, o)
	return plan.Workspace(), err
}

// defaultMemory is the default of Options.Memory.
const defaultMemory = 512 << 20

// Choose returns how p would run on a device. Errors about p and o are as in Forward and Backward.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (Plan, error) {
	plan := Plan{Tokens: p.Tokens, Rows: p.Vocabulary, p: p, pass: pass, products: map[engine.Problem]*chain.Product{}}
	if err := cmp.Or(p.Validate(), argument.Pass("xent", pass), argument.Storage("xent", caps, p.DType, p.GradDType())); err != nil {
		return plan, err
	}
	seen := int64(min(caps.MaxStorageBufferRange, 1<<62))
	switch {
	case o.Memory < 0:
		return plan, fmt.Errorf("xent: memory=%d is negative", o.Memory)
	case o.Rows < 0:
		return plan, fmt.Errorf("xent: rows=%d is negative", o.Rows)
	case threads(caps)*12 > int(caps.MaxSharedMemoryBytes):
		return plan, argument.Unsupported("xent", "a workgroup needs %d bytes of shared memory, the device has %d", threads(caps)*12, caps.MaxSharedMemoryBytes)
	}
	plan.totals, plan.losses = plan.memory.Take(8), plan.memory.Take(4*int64(p.Tokens))
	plan.kernels = []string{"xent_total"}
	if p.Dim == 0 {
		if bytes := int64(p.logits()) * int64(p.DType.Size()); bytes > seen {
			return plan, argument.Unsupported("xent", "logits have %d bytes, a kernel sees %d of a buffer", bytes, seen)
		}
		plan.kernels = append(plan.kernels, "xent_rows")
		return plan, nil
	}
	if plan.rowBytes() > seen {
		return plan, argument.Unsupported("xent", "the logits of a token have %d bytes, a kernel sees %d of a buffer", plan.rowBytes(), seen)
	}
	plan.Tokens = share(p.Tokens, min(cmp.Or(o.Memory, defaultMemory), seen)/plan.rowBytes())
	size := p.DType.Size()
	if plan.weights() {
		size = max(size, p.GradDType().Size())
	}
	plan.Rows = share(p.Vocabulary, seen/int64(p.Dim*size))
	if o.Rows > 0 {
		plan.Rows = min(plan.Rows, o.Rows)
	}
	plan.logits = plan.memory.Take(int64(plan.Tokens) * plan.rowBytes())
	return plan, plan.multiply(caps, o)
}

// share returns how many of n items are taken at a time, at most most: even parts, of a multiple of 64
// where more than that many.
func share(n int, most int64) int {
	at := int(max(1, min(most, int64(n))))
	if at == n {
		return n
	}
	if at >= 64 {
		at -= at % 64
	}
	parts := (n + at - 1) / at
	even := (n + parts - 1) / parts
	if at >= 64 {
		even = (even + 63) / 64 * 64
	}
	return even
}

// stride returns the distance of rows of logits in the workspace, in float32. As 16-bit numbers, rows
// begin at multiples of 16 bytes, too.
func (p *Plan) stride() int { return (p.p.Vocabulary + 7) / 8 * 8 }

func (p *Plan) rowBytes() int64 { return 4 * int64(p.stride()) }

// weights reports whether dw is computed.
func (p *Plan) weights() bool { return p.pass == kit.Backward && !p.p.Frozen }

// A part is some rows of a tensor.
type part struct{ from, to int }

func (p part) len() int { return p.to - p.from }

// parts divides n rows into parts of at most each.
func parts(n, each int) (list []part) {
	for at := 0; at < n; at += each {
		list = append(list, part{at, min(at+each, n)})
	}
	return list
}

// An op is a product of a chunk of tokens and a part of W.
type op int

const (
	opLogits op = iota // x = h * Wᵀ
	opDH               // dh = dx * W, added to dh of the parts of W before
	opDW               // dw = dxᵀ * h, added to dw of the chunks before
)

// product returns the problem of a product.
func (p *Plan) product(o op, tokens, rows part) engine.Problem {
	e := engine.Problem{DType: p.p.DType, Out: p.p.DType}
	switch o {
	case opLogits:
		e.M, e.N, e.K, e.TransB, e.Out = tokens.len(), rows.len(), p.p.Dim, true, dtype.Float32
	case opDH:
		e.M, e.N, e.K = tokens.len(), p.p.Dim, rows.len()
		if rows.from > 0 {
			e.Beta = 1
		}
	case opDW:
		e.M, e.N, e.K, e.TransA, e.Out = rows.len(), p.p.Dim, tokens.len(), true, p.p.GradDType()
		if tokens.from > 0 || p.p.Accumulate {
			e.Beta = 1
		}
	}
	return e
}

// ops lists the products before or after the kernel of the rows.
func (p *Plan) ops(after bool) []op {
	switch {
	case !after:
		return []op{opLogits}
	case p.pass == kit.Forward:
		return nil
	case p.p.Frozen:
		return []op{opDH}
	}
	return []op{opDH, opDW}
}

// multiply chooses the products of all chunks, which share the rest of the workspace.
func (p *Plan) multiply(caps *vk.Caps, o Options) error {
	for _, after := range []bool{false, true} {
		for _, op := range p.ops(after) {
			for _, tokens := range parts(p.p.Tokens, p.Tokens) {
				for _, rows := range parts(p.p.Vocabulary, p.Rows) {
					e := p.product(op, tokens, rows)
					if p.products[e] != nil {
						continue
					}
					x, err := chain.NewProduct(caps, "xent", &p.memory, e, engine.Options{Impl: o.Impl, Tuning: o.Tuning})
					if err != nil {
						return err
					}
					p.products[e] = &x
					for _, k := range x.Kernels() {
						if !slices.Contains(p.kernels, k) {
							p.kernels = append(p.kernels, k)
						}
					}
				}
			}
		}
		if !after {
			p.kernels = append(p.kernels, "xent_rows")
		}
	}
	return nil
}
