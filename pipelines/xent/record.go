package xent

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Forward computes the cross entropy of tokens, and their mean or sum; the package documentation has the
// formulas.
//
//	x = h * Wᵀ
//	lse[t] = log(sum over v of exp(x[t,v]))
//	l[t] = lse[t] - (1 - Smoothing) * x[t,labels[t]] - Smoothing * mean(x[t,:]) + ZLoss * lse[t]²
//	loss = sum of l[t] over counted tokens / their number
//
// H is (tokens, dim) and W (vocabulary, dim) of p.DType, any row stride and a contiguous last axis.
// Strides and offsets that are multiples of 8 elements are fastest. Labels is (tokens), int32. Losses and
// LSE are (tokens) and Loss is (1), float32; each may be left out. With p.Dim 0, Logits is (tokens,
// vocabulary) of p.DType. One-dimensional tensors are contiguous.
//
// Logits are float32, and so is the rest. The largest logit of a token is taken off before exponentials:
// finite logits give a finite l. LSE is the natural logarithm, of ignored tokens, too.
//
// Forward records into c and returns; outputs are valid once c has completed, and have memory of their
// own. It returns an error that wraps vk.ErrUnsupported if the device cannot do it, and an error naming
// the tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) error {
	return record(c, t, Gradients{}, p, kit.Forward, o)
}

// Backward computes the gradients of Forward's loss times DLoss, and what Forward computes: it reads
// nothing that Forward wrote, and a training step does without Forward.
//
//	dx[t,v] = (exp(x[t,v] - lse[t]) * (1 + 2 * ZLoss * lse[t]) - (1 - Smoothing) * [v = labels[t]] - Smoothing / vocabulary) / number
//	dh = dx * W
//	dw = dxᵀ * h
//
// DH is (tokens, dim) of p.DType, DW (vocabulary, dim) of p.GradDType(), DLoss (1) float32. The other
// tensors are as in Forward. With p.Dim 0 there are neither DH nor DW, and dx replaces Logits.
//
// dx is rounded to p.DType, where float16 should have a DLoss, a loss scale, that keeps small gradients: dx is
// about 1 / (number * vocabulary). dw is rounded once for each chunk of tokens, dh once for each part of
// W: with many chunks it should be float32.
//
// Backward records into c and returns. Errors are as in Forward.
func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, o Options) error {
	return record(c, t, g, p, kit.Backward, o)
}

// A run is a call that is recorded.
type run struct {
	Plan
	c *vk.Cmd
	t Tensors
	g Gradients
	b *vk.Buffer // the workspace
}

func record(c *vk.Cmd, t Tensors, g Gradients, p Problem, pass kit.Pass, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	plan, err := Choose(c.Device().Caps(), p, pass, o)
	if err != nil {
		return err
	}
	inputs, outputs := plan.arguments(&t, &g)
	b, err := argument.Open(c, "xent", o.Workspace, plan.memory.Bytes, inputs, outputs)
	if err != nil {
		return err
	}
	r := run{plan, c, t, g, b}
	if r.t.Losses.IsZero() {
		if r.t.Losses, err = r.floats(r.losses, p.Tokens); err != nil {
			return err
		}
	}
	totals, err := r.floats(r.totals, 2)
	if err != nil {
		return err
	}
	if err := r.total(totals, false); err != nil {
		return err
	}
	for _, tokens := range parts(p.Tokens, r.Tokens) {
		if err := r.chunk(tokens, totals); err != nil {
			return err
		}
	}
	if t.Loss.IsZero() {
		return c.Err()
	}
	return r.total(totals, true)
}

// arguments lists the tensors of a call.
func (p *Plan) arguments(t *Tensors, g *Gradients) (inputs, outputs []argument.Argument) {
	q, back := &p.p, p.pass == kit.Backward
	linear, given := q.Dim > 0, q.Dim == 0
	h, w := []int{q.Tokens, q.Dim}, []int{q.Vocabulary, q.Dim}
	logits := argument.New("logits", t.Logits, given, q.DType, []int{q.Tokens, q.Vocabulary})
	row, one := []int{q.Tokens}, []int{1}
	inputs = []argument.Argument{
		argument.New("labels", t.Labels, true, dtype.Int32, row),
		argument.New("h", t.H, linear, q.DType, h),
		argument.New("w", t.W, linear, q.DType, w),
		argument.New("dloss", g.DLoss, back && !g.DLoss.IsZero(), dtype.Float32, one),
	}
	outputs = []argument.Argument{
		argument.New("losses", t.Losses, !t.Losses.IsZero(), dtype.Float32, row),
		argument.New("lse", t.LSE, !t.LSE.IsZero(), dtype.Float32, row),
		argument.New("loss", t.Loss, !t.Loss.IsZero(), dtype.Float32, one),
		argument.New("dh", g.DH, back && linear, q.DType, h),
		argument.New("dw", g.DW, p.weights() && linear, q.GradDType(), w),
	}
	if back {
		return inputs, append(outputs, logits)
	}
	return append(inputs, logits), outputs
}

// floats returns a tensor in the workspace.
func (r *run) floats(at int64, shape ...int) (vk.Tensor, error) {
	bytes := int64(4)
	for _, n := range shape {
		bytes *= int64(n)
	}
	b, err := r.b.Slice(at, (bytes+15)&^15)
	if err != nil {
		return vk.Tensor{}, err
	}
	return vk.View(b, dtype.Float32, shape...), nil
}

// chunk records the tokens of a chunk: products, xent_rows, products.
func (r *run) chunk(tokens part, totals vk.Tensor) error {
	x, dx := r.t.Logits, r.t.Logits
	if r.p.Dim > 0 {
		whole, err := r.floats(r.logits, tokens.len(), r.stride())
		if err != nil {
			return err
		}
		dx = whole
		dx.DType, dx.Shape, dx.Strides = r.p.DType, []int{tokens.len(), r.p.Vocabulary}, []int{r.stride() * 4 / r.p.DType.Size(), 1}
		x = whole.Slice(1, 0, r.p.Vocabulary)
		if err := r.multiply(false, tokens, x); err != nil {
			return err
		}
	}
	if err := r.rows(tokens, x, dx, totals); err != nil || r.p.Dim == 0 {
		return err
	}
	return r.multiply(true, tokens, dx)
}

// multiply records the products before or after xent_rows, of x or dx.
func (r *run) multiply(after bool, tokens part, x vk.Tensor) error {
	for _, op := range r.ops(after) {
		for _, rows := range parts(r.p.Vocabulary, r.Rows) {
			var e engine.Tensors
			w, columns := rows.of(r.t.W), x.Slice(1, rows.from, rows.to)
			switch op {
			case opLogits:
				e = engine.Tensors{A: tokens.of(r.t.H), B: w, C: columns}
			case opDH:
				e = engine.Tensors{A: columns, B: w, C: tokens.of(r.g.DH)}
			case opDW:
				e = engine.Tensors{A: columns, B: tokens.of(r.t.H), C: rows.of(r.g.DW)}
			}
			s, err := r.products[r.product(op, tokens, rows)].Steps(r.c, r.b, e)
			if err != nil {
				return err
			}
			if err := s.Record(r.c); err != nil {
				return err
			}
		}
	}
	return nil
}

// of returns the rows of a tensor.
func (p part) of(t vk.Tensor) vk.Tensor { return t.Slice(0, p.from, p.to) }

// threads returns the invocations of a workgroup: a power of two.
func threads(caps *vk.Caps) int {
	n := 256
	for n > int(min(caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0])) && n > 1 {
		n /= 2
	}
	return n
}

// total records xent_total.
func (r *run) total(totals vk.Tensor, sum bool) error {
	labels, losses, dloss, loss := r.t.Labels, r.t.Losses, r.g.DLoss, r.t.Loss
	vk.Narrow(&labels, &losses, &dloss, &loss)
	spec := totalSpec{uint32(threads(r.c.Device().Caps())), sum, !r.p.Sum, !dloss.IsZero()}
	k := chips.Kernel[totalParams](r.c, "xent_total", "", spec, vk.KernelOptions{})
	params := totalParams{
		Tokens: uint32(r.p.Tokens), Ignore: int32(r.p.IgnoreLabel()), LabelsOffset: uint32(labels.Offset), LossesOffset: uint32(losses.Offset),
		DLossOffset: uint32(dloss.Offset), LossOffset: uint32(loss.Offset),
	}
	r.c.Note(func() vk.Note { return vk.Note{Text: fmt.Sprintf("%d tokens", r.p.Tokens), Bytes: vk.Traffic(labels)} })
	if dloss.IsZero() {
		dloss = labels
	}
	if !sum {
		losses, loss = labels, totals // which the kernel does not touch as such
	}
	k.Dispatch(r.c, vk.Groups{X: 1}, params, labels, losses, dloss, totals, loss)
	return r.c.Err()
}

// rows records xent_rows.
func (r *run) rows(tokens part, x, dx, totals vk.Tensor) error {
	caps, labels, losses, lse := r.c.Device().Caps(), tokens.of(r.t.Labels), tokens.of(r.t.Losses), vk.Tensor{}
	if !r.t.LSE.IsZero() {
		lse = tokens.of(r.t.LSE)
	}
	offset := x.Offset
	vk.Narrow(&x, &labels, &losses, &lse)
	dx.Offset += (x.Offset - offset) * x.DType.Size() / dx.DType.Size() // in the memory of x, as narrow
	spec := rowsSpec{
		WorkgroupSize: uint32(threads(caps)), Vec: uint32(16 / min(x.DType.Size(), dx.DType.Size())), From: chips.Format(x.DType), To: chips.Format(dx.DType),
		Aligned: x.Aligned(16/x.DType.Size()) && dx.Aligned(16/dx.DType.Size()), Gradient: r.pass == kit.Backward, WriteLSE: !lse.IsZero(),
	}
	k := chips.Kernel[rowsParams](r.c, "xent_rows", "", spec, vk.KernelOptions{})
	params := rowsParams{
		Rows: uint32(tokens.len()), Vocabulary: uint32(r.p.Vocabulary), Ignore: int32(r.p.IgnoreLabel()),
		Smoothing: float32(r.p.Smoothing), ZLoss: float32(r.p.ZLoss),
		XOffset: uint32(x.Offset), XStride: uint32(x.Strides[0]), DXOffset: uint32(dx.Offset), DXStride: uint32(dx.Strides[0]),
		LabelsOffset: uint32(labels.Offset), LossesOffset: uint32(losses.Offset), LSEOffset: uint32(lse.Offset),
	}
	r.c.Note(func() vk.Note {
		n := vk.Note{Text: fmt.Sprintf("%d rows of %d", tokens.len(), r.p.Vocabulary), FLOPs: 4 * float64(tokens.len()) * float64(r.p.Vocabulary), Bytes: vk.Traffic(x)}
		if spec.Gradient {
			n.FLOPs, n.Bytes = 2*n.FLOPs, vk.Traffic(x, dx)
		}
		return n
	})
	if lse.IsZero() {
		lse = losses // which the kernel does not touch as such
	}
	k.Dispatch(r.c, chips.Groups(caps, tokens.len(), 1), params, x, labels, totals, losses, lse)
	return r.c.Err()
}

// totalParams is the push-constant block of xent_total.comp.
type totalParams struct {
	Tokens       uint32 `glsl:"tokens"`
	Ignore       int32  `glsl:"ignore_label"`
	LabelsOffset uint32 `glsl:"labels_offset"` // elements, like all that follow
	LossesOffset uint32 `glsl:"losses_offset"`
	DLossOffset  uint32 `glsl:"dloss_offset"`
	LossOffset   uint32 `glsl:"loss_offset"`
}

// totalSpec is the specialization of xent_total.comp.
type totalSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	SumLosses     bool   `glsl:"SUM_LOSSES"`
	Mean          bool   `glsl:"MEAN"`
	Scaled        bool   `glsl:"SCALED"`
}

// rowsParams is the push-constant block of xent_rows.comp.
type rowsParams struct {
	Rows         uint32  `glsl:"rows"`
	Vocabulary   uint32  `glsl:"vocabulary"`
	Ignore       int32   `glsl:"ignore_label"`
	Smoothing    float32 `glsl:"smoothing"`
	ZLoss        float32 `glsl:"z_loss"`
	XOffset      uint32  `glsl:"x_offset"` // elements, like all that follow
	XStride      uint32  `glsl:"x_stride"`
	DXOffset     uint32  `glsl:"dx_offset"`
	DXStride     uint32  `glsl:"dx_stride"`
	LabelsOffset uint32  `glsl:"labels_offset"`
	LossesOffset uint32  `glsl:"losses_offset"`
	LSEOffset    uint32  `glsl:"lse_offset"`
}

// rowsSpec is the specialization of xent_rows.comp.
type rowsSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Vec           uint32 `glsl:"VEC"`
	Aligned       bool   `glsl:"ALIGNED"`
	From          uint32 `glsl:"FROM_FORMAT"`
	To            uint32 `glsl:"TO_FORMAT"`
	Gradient      bool   `glsl:"GRADIENT"`
	WriteLSE      bool   `glsl:"WRITE_LSE"`
}
