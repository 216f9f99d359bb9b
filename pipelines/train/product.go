package train

import (
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Product is a product with a weight, of package gemm:
//
//	y = activation(Alpha * x * w + Bias + Into) + Plus
//
// LoRA is two of them on a product with a frozen weight:
//
//	y := t.Product("q", Product{X: x, W: w, TransW: true})
//	h := t.Product("q.down", Product{X: x, W: a, TransW: true})
//	y = t.Product("q.up", Product{X: h, W: b, TransW: true, Alpha: alpha / rank, Into: y})
type Product struct {
	X *Value // (rows, in), or rows of each of several tasks (Tape.Rows)
	W *Value // (in, out); with TransW (out, in), as files of Hugging Face have it
	// TransW says that W is (out, in).
	TransW bool
	Alpha  float64 // 0 is 1
	// Into is a matrix (rows, out) whose memory takes the sum. No op may read it afterwards.
	Into *Value
	// Plus is a matrix (rows, out) that is added. It stays as it is.
	Plus *Value
	Bias *Value // a Vector (out) that is added to each row
	// Activation is Identity, SiLU, GELU or GELUTanh. Where y has a gradient, the first op that reads y
	// is a product, whose backward pass applies the derivative; there is then no Plus.
	Activation gemm.Activation
	Out        dtype.Option // the format of y; the zero value is the format of activations
}

// Product appends a product with a weight, and returns y, (rows, out).
func (t *Tape) Product(name string, p Product) *Value {
	return t.Products(Named{name, name, p})[0]
}

// A Named product has the names of its step and of what it writes.
type Named struct {
	Step, Name string
	Product
}

// Products appends products of which several have the same X, or parts of it, as queries, keys and
// values have. The gradients by their weights then come first. The gradients by X are added up in the
// order of the products.
func (t *Tape) Products(list ...Named) []*Value {
	o := &op{name: list[0].Step}
	var calls []*product
	for _, p := range list {
		k := t.product(p)
		if k == nil {
			return make([]*Value, len(list))
		}
		calls = append(calls, k)
		o.in, o.out = append(o.in, k.X, k.W, p.Into, p.Plus, p.Bias), append(o.out, k.y, k.copy, k.y.node.before)
		o.saved = append(o.saved, k.W, k.matrix())
	}
	for _, k := range slices.Backward(calls) {
		if n := k.X.node; n.before != nil && !n.read && slices.Equal(k.X.view.Shape, n.shape) {
			n.read, k.before = true, n.before
			o.saved = append(o.saved, k.before)
		}
	}
	o.forward = func(again bool) {
		for _, k := range calls {
			k.forward(again)
		}
	}
	o.backward = func() { t.productsBackward(calls) }
	t.append(o)
	var y []*Value
	for _, k := range calls {
		y = append(y, k.y)
		if k.Into != nil {
			k.Into.node.consumed = true
		}
	}
	return y
}

// leastRows is the least number of rows of a task for a product of each task, which reads them
// without a copy. Products of fewer rows leave workgroups too empty: one product reads a copy of all.
const leastRows = 32

// A product is a call of Product.
type product struct {
	t *Tape
	Named
	y             *Value
	tasks         int    // products of the forward pass
	copy          *Value // of the rows of X, as a matrix; nil if X is one
	before        *Value // of the activation that wrote X, whose derivative the gradient by X gets here
	rows, in, out int
}

// product returns the call, nil if its operands do not fit.
func (t *Tape) product(p Named) *product {
	k := &product{t: t, Named: p, tasks: 1}
	if flat := k.X.flat(); len(k.X.view.Shape) == 3 && flat != nil {
		k.X = flat
	}
	x, w := k.X.view.Shape, k.W.view.Shape
	if len(w) == 2 {
		k.in, k.out = w[0], w[1]
		if k.TransW {
			k.in, k.out = w[1], w[0]
		}
	}
	if len(w) != 2 || len(x) != 2 && len(x) != 3 || x[len(x)-1] != k.in {
		t.failf("%s%s: x has shape %v, w %v", t.scope, k.Step, x, w)
		return nil
	}
	k.rows = k.X.view.NumElements() / k.in
	k.y = t.Tensor(k.Name, k.Out.Or(t.format), k.rows, k.out)
	k.y.node.grad = k.X.node.dtype
	for i, v := range []*Value{k.Into, k.Plus, k.Bias} {
		if want := k.y.view.Shape[i/2:]; v != nil && !slices.Equal(v.view.Shape, want) { // a bias is one row
			t.failf("%s%s: %s has shape %v, want %v", t.scope, k.Step, v.Name(), v.view.Shape, want)
			return nil
		}
	}
	if k.Activation != gemm.Identity && t.pass >= Gradients {
		if k.Plus != nil || k.Activation.Plain() != gemm.SiLU {
			t.failf("%s%s: activation %v has no gradient here", t.scope, k.Step, k.Activation)
			return nil
		}
		k.y.node.before, k.y.node.derivative = t.Tensor(k.Name+", before the activation", k.y.node.dtype, k.rows, k.out), k.Activation+2
	}
	if v := k.Into; v != nil && (v.node.memory == nil || !slices.Equal(v.view.Shape, v.node.shape)) {
		t.failf("%s%s: %s is no whole tensor that an op wrote", t.scope, k.Step, v.Name())
		return nil
	}
	if len(x) == 3 {
		k.copy = t.Tensor("rows of "+k.Name, k.X.node.dtype, k.rows, k.in)
		if x[1] >= leastRows {
			k.tasks = x[0]
		}
	}
	return k
}

// matrix returns X for a product of all tasks.
func (k *product) matrix() *Value {
	if k.copy != nil {
		return k.copy
	}
	return k.X
}

// forward appends the product. Where it needs none of the copy, but the backward pass does, the copy
// is made by the pass whose tensors are kept for it.
func (k *product) forward(again bool) {
	t, x := k.t, k.X
	trained := t.pass >= Gradients && k.W.node.wanted && (t.o.Checkpoint == Off || t.block == nil)
	if k.copy != nil && (k.tasks == 1 || again || trained) {
		t.make(again, k.copy)
		t.copyRows(repeated("rows of "+k.Name, again), k.copy.Split(x.view.Shape[0]), x)
	}
	if k.tasks == 1 {
		x = k.matrix()
	}
	p := gemm.Problem{M: k.rows, N: k.out, K: k.in, TransB: k.TransW, Alpha: k.Alpha, Activation: k.Activation, Residual: k.Plus != nil, Bias: k.Bias != nil}
	if k.Into != nil {
		p.Beta, k.y.node.memory = 1, k.Into.node.memory
	} else {
		t.make(again, k.y)
	}
	before := k.y.node.before
	if before != nil {
		p.Activation++ // which keeps what is before it
		t.make(again, before)
	}
	t.multiply(repeated(k.Step, again), k.y, x, k.W, extras{k.Plus, k.Bias, before}, k.tasks, p)
}

// extras are what a product adds, and X of its activation; each may be nil.
type extras struct{ plus, bias, before *Value }

// multiply appends c = a * b of as many tasks, whose rows follow one another in matrices.
func (t *Tape) multiply(name string, c, a, b *Value, x extras, tasks int, p gemm.Problem) {
	p.DType, p.Out = b.node.dtype, dtype.Some(c.node.dtype)
	if x.bias != nil {
		x.bias = x.bias.spaced(tasks, 0)
	}
	if tasks > 1 {
		split := func(v *Value) *Value {
			if v == nil || len(v.view.Shape) == 3 {
				return v
			}
			return v.Split(tasks)
		}
		p.Batch, p.M = tasks, p.M/tasks
		c, a, b, x.plus, x.before = split(c), split(a), b.spaced(tasks, 0), split(x.plus), split(x.before)
	}
	bytes, err := gemm.Workspace(t.caps, p, kit.Forward, gemm.Options{})
	keeps := p.Activation.Plain() == gemm.SiLUKeep
	in, out := []*Value{a, b, x.plus, x.bias, onlyIf(!keeps, x.before), onlyIf(p.Beta != 0, c)}, []*Value{c, onlyIf(keeps, x.before)}
	t.step(name, in, out, bytes, err, func(cmd *vk.Cmd, m Call) error {
		t := gemm.Tensors{A: m.In[0], B: m.In[1], Residual: m.In[2], Bias: m.In[3], X: m.In[4], C: m.Out[0]}
		if keeps {
			t.X = m.Out[1]
		}
		return gemm.Forward(cmd, t, p, gemm.Options{Workspace: m.Workspace})
	})
}

// productsBackward appends the gradients of products. The gradient by x of a lone product comes
// first, since the ops before it wait for it.
func (t *Tape) productsBackward(calls []*product) {
	calls = slices.DeleteFunc(slices.Clone(calls), func(k *product) bool { return grad(k.y) == nil })
	for _, k := range calls {
		if n := k.y.node; n.before != nil && !n.derived {
			t.failf("%s%s: no product is the first to read %s: activation %v has no gradient here", t.scope, k.Step, n.name, k.Activation)
			return
		}
	}
	if len(calls) == 1 {
		t.inputGradients(calls)
		t.weightGradients(calls)
	} else {
		t.weightGradients(calls)
		t.inputGradients(calls)
	}
	for _, k := range calls {
		if to := t.into(k.Bias)[0]; to.v != nil {
			p := gemm.Problem{M: 1, N: k.out, K: k.rows, Ones: true, Beta: beta(to)}
			t.multiply(k.Step+", gradient of the bias", to.v.spaced(1, 0), nil, grad(k.y), extras{}, 1, p)
		}
		for _, v := range []*Value{k.Into, k.Plus} {
			if v.wanted() {
				t.share(v, grad(k.y))
				shared(k.y)
			}
		}
	}
}

func (t *Tape) weightGradients(calls []*product) {
	var weights []*Value
	for _, k := range calls {
		weights = append(weights, k.W)
	}
	for i, to := range t.into(weights...) {
		k := calls[i]
		if to.v == nil {
			continue
		}
		a, b, blocks := k.matrix(), grad(k.y), k.W.node.blocks
		if k.TransW {
			a, b = b, a
		}
		if blocks == nil {
			blocks = a.Shape()[1:]
		}
		row, n := 0, b.Shape()[1]/len(blocks)
		for i, equal := 0, 1; i < len(blocks); i, equal = i+equal, 1 {
			rows := blocks[i]
			for i+equal < len(blocks) && blocks[i+equal] == rows {
				equal++ // one call for all of them
			}
			c, a, b := to.v.Slice(0, row, row+rows).Slice(1, i*n, (i+1)*n), a.Slice(1, row, row+rows), b.Slice(1, i*n, (i+1)*n)
			p := gemm.Problem{M: rows, N: n, K: k.rows, TransA: true, Alpha: k.Alpha, Beta: beta(to)}
			if equal > 1 {
				p.Batch, c, a, b = equal, c.spaced(equal, rows*c.view.Strides[0]+n), a.spaced(equal, rows), b.spaced(equal, n)
			}
			t.multiply(k.Step+", gradient of the weight", c, a, b, extras{}, 1, p)
			row += equal * rows
		}
	}
}

func (t *Tape) inputGradients(calls []*product) {
	var inputs []*Value
	for _, k := range calls {
		x := k.X
		if of := x.node.rows; of != nil && slices.Equal(x.view.Shape, x.node.shape) {
			x = of // without a tensor for the copy
		}
		inputs = append(inputs, x)
	}
	for i, to := range t.into(inputs...) {
		k := calls[i]
		if to.v == nil {
			continue
		}
		tasks := 1
		if flat := to.v.flat(); flat != nil {
			to.v = flat
		} else {
			tasks = to.v.view.Shape[0]
		}
		p := gemm.Problem{M: k.rows, N: k.in, K: k.out, TransB: !k.TransW, Alpha: k.Alpha, Beta: beta(to)}
		if k.before != nil {
			k.X.node.derived, p.Activation = true, k.X.node.derivative
		}
		t.multiply(k.Step+", backward", to.v, grad(k.y), k.W, extras{before: k.before}, tasks, p)
	}
}

// beta returns what multiplies what was there.
func beta(to place) float64 {
	if to.add {
		return 1
	}
	return 0
}
