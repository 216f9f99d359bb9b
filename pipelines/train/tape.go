package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Tape records the forward pass of a model, op after op, and derives the backward pass. The
// functions that append an op return what it writes. They keep the first error, which NewPlan
// returns: the author of a model checks none.
//
// The same function of a model serves training and prediction. It may be called several times for a
// plan, as checkpoint Auto does, on a new tape each.
type Tape struct {
	caps   *vk.Caps
	o      PlanOptions
	format dtype.DType
	pass   Pass
	prog   *record.Program
	err    error // the first

	params  []Param
	nodes   map[string]*node // of params
	frozen  func(name string) bool
	scope   string
	block   *block // nil outside of blocks
	ops     []*op
	inputs  map[string]*Value
	outputs map[string]*Value
	counts  map[int]*Value // the inputs 0, 1, ... n-1, by n
	regions map[string]region
	scale   *Value // the gradient of the loss
	// complete has the number of steps after which the gradient by a parameter is complete.
	complete map[string]int
	layout   *layout // of params, once the program is there
	model    *Model  // nil until the program is recorded
}

// An op is appended to a tape.
type op struct {
	scope, name string
	block       *block
	in, out     []*Value
	saved       []*Value // of in and out: what the backward pass reads
	// again lists what forward(true) reads, if that is not in.
	again    func() []*Value
	forward  func(again bool)
	backward func() // nil: gradients end here
}

// A block is a part of a model that is computed again with checkpoints.
type block struct{ ops []*op }

// Caps returns the capabilities of the device.
func (t *Tape) Caps() *vk.Caps { return t.caps }

// DType returns the format of activations, and of the weights that products read.
func (t *Tape) DType() dtype.DType { return t.format }

// Checkpoint returns Off, Selective or Blocks: what Auto has chosen for this tape.
func (t *Tape) Checkpoint() Checkpoint { return t.o.Checkpoint }

// Pass returns how far the plan goes.
func (t *Tape) Pass() Pass { return t.pass }

// Fail keeps an error, if it is the first.
func (t *Tape) Fail(err error) {
	if t.err == nil && err != nil {
		t.err = err
	}
}

func (t *Tape) failf(format string, args ...any) {
	t.Fail(fmt.Errorf("train: "+format, args...))
}

// Block calls f, which appends a part of a model, such as a layer. Scope begins the names of its
// steps and tensors, as "blocks.3." does. With a checkpoint the tensors of a block that it does not
// keep (Keep) are computed again when the backward pass comes to the block.
func (t *Tape) Block(scope string, f func()) {
	outer, before := t.block, t.scope
	t.block, t.scope = &block{}, before+scope
	if outer != nil {
		t.failf("block %s lies in another", scope)
	}
	f()
	t.block, t.scope = outer, before
}

// Keep says that checkpoints up to c keep a tensor of a block: Blocks says so of the tensor from
// which the block is computed again, Selective of what takes long to compute and little memory. It
// returns v.
func (t *Tape) Keep(v *Value, c Checkpoint) *Value {
	v.node.kept = max(v.node.kept, c)
	return v
}

// Input returns a tensor that the caller uploads before each run of a plan: Plan.Tensor has it by its
// name.
func (t *Tape) Input(name string, d dtype.DType, shape ...int) *Value {
	n := &node{name: name, dtype: d, shape: shape, memory: t.prog.Input(name, d, shape...)}
	v := newValue(n)
	t.inputs[name] = v
	return v
}

// Output keeps v until the next run, so that the caller can download it: Plan.Tensor has it by its
// name. It returns v.
func (t *Tape) Output(v *Value) *Value {
	v.node.output = true
	if v.node.memory != nil {
		t.prog.Output(v.node.memory)
	}
	t.outputs[v.Name()] = v
	return v
}

// Weight returns a parameter that products read, in the format of activations. Its name is its
// name in files. Products take matrices as x * w, (in, out), or as files of Hugging Face have them,
// (out, in): Product.TransW. A second call with a name returns the same parameter, whose gradient is
// the sum of both.
func (t *Tape) Weight(name string, shape ...int) *Value {
	return t.Join(Param{Name: name, Shape: shape, DType: t.format})
}

// Vector returns a parameter of n elements that is read in float32, as the weights of norms are. It
// has no weight decay.
func (t *Tape) Vector(name string, n int) *Value {
	return t.Join(Param{Name: name, Shape: []int{n}, NoDecay: true})
}

// Join returns parameters as one, which has the rows of all: one product reads them, and another makes
// their gradients. Files have each by its name. All are trained or none is; their shapes differ in the first
// axis alone. No other call has one of the names, but one with all of them. What breaks a rule is the error of the tape.
func (t *Tape) Join(params ...Param) *Value {
	var names []string
	for _, x := range params {
		names = append(names, x.Name)
	}
	if len(params) == 0 || slices.ContainsFunc(params, func(p Param) bool { return len(p.Shape) == 0 }) {
		t.failf("parameters %s: at least one, and a shape of each, is needed", names)
		return newValue(&node{shape: []int{1}})
	}
	p, shape := params[0], slices.Clone(params[0].device())
	shape[0] = 0
	for _, x := range params {
		shape[0] += x.device()[0]
		if !slices.Equal(x.device()[1:], shape[1:]) || x.DType != p.DType || t.frozen(x.Name) != t.frozen(p.Name) {
			t.failf("parameters %s differ beyond the first axis, in format, or some are trained", names)
		}
	}
	name := strings.Join(names, "+")
	n, ok := t.nodes[name]
	if !ok {
		n = &node{name: name, params: names, dtype: p.DType, grad: dtype.Float32, shape: shape, kept: Blocks}
		n.weight = func() vk.Tensor { return t.model.weight(p.Name, shape) }
		n.wanted = t.pass >= Gradients && !t.frozen(p.Name)
		t.nodes[name] = n
		for i, x := range params {
			if slices.ContainsFunc(t.params, func(y Param) bool { return y.Name == x.Name }) {
				t.failf("parameter %s is joined to others and is not", x.Name)
			}
			x.Frozen, x.Joined = t.frozen(x.Name), i > 0
			t.params = append(t.params, x)
		}
	}
	if !slices.Equal(n.shape, shape) || n.dtype != p.DType {
		t.failf("parameter %s is %v %v and %v %v", name, n.dtype, n.shape, p.DType, shape)
	}
	return newValue(n)
}

// Diagonal is Join of n matrices as the blocks on the diagonal of one, which has n times their columns. Elements
// beside the blocks are 0: they are in no file, and have no gradient.
func (t *Tape) Diagonal(params ...Param) *Value {
	var blocks []int
	params = slices.Clone(params)
	for i := range params {
		p := &params[i]
		if len(p.Shape) != 2 {
			t.failf("parameter %s of shape %v is no block of a matrix", p.Name, p.Shape)
			return t.Join(params...)
		}
		rows, cols := p.Shape[0], p.Shape[1]
		wide := len(params) * cols
		p.Device, p.At = []int{rows, wide}, func(j int) int { return j/cols*wide + i*cols + j%cols }
		blocks = append(blocks, rows)
	}
	v := t.Join(params...)
	v.node.blocks = blocks
	return v
}

// Tensor returns a tensor that an op is to write.
func (t *Tape) Tensor(name string, d dtype.DType, shape ...int) *Value {
	return newValue(&node{scope: t.scope, name: name, dtype: d, grad: d, shape: shape, block: t.block})
}

// tensor returns a tensor in the format of activations.
func (t *Tape) tensor(name string, shape ...int) *Value { return t.Tensor(name, t.format, shape...) }

// An Op is a call of kernels that a tape has no function for. Forward and Backward record it, and are
// called once for each recording, after the tape is complete: they may not append to it. Tensors are
// in the order of In and Out.
//
// Backward computes the gradients by In that are wanted; it does not add to what was there. An
// op without Backward ends the gradients: what it writes has no gradient.
type Op struct {
	Name string
	In   []*Value // read; nil is none, whose tensor is zero
	Out  []*Value // written, of Tape.Tensor; nil is none
	// Reads are the In and Out that Backward reads. Nil is all of them. With checkpoints others
	// need not be computed again.
	Reads []*Value
	// Together are the In whose gradients Backward writes together: where one is wanted, the others
	// have memory, too.
	Together []*Value
	// Workspace returns the bytes of memory that a pass needs, or why no kernel does it; nil: none does.
	Workspace func(pass kit.Pass) (int64, error)
	Forward   func(c *vk.Cmd, m Call) error
	Backward  func(c *vk.Cmd, m Call) error
}

// A Call has the tensors of a call of an Op.
type Call struct {
	In, Out   []vk.Tensor // in Backward zero, but for the tensors of Op.Reads
	DOut      []vk.Tensor // of Backward: gradients by Out, read; zero where there is none
	DIn       []vk.Tensor // of Backward: gradients by In, written; zero where nobody wants one (Op.Together)
	Workspace *vk.Buffer  // nil for 0 bytes
}

// Op appends a call of kernels.
func (t *Tape) Op(x Op) {
	if x.Reads == nil {
		x.Reads = slices.Concat(x.In, x.Out)
	}
	if x.Workspace == nil {
		x.Workspace = func(kit.Pass) (int64, error) { return 0, nil }
	}
	o := &op{name: x.Name, in: x.In, out: x.Out, saved: x.Reads}
	o.forward = func(again bool) {
		t.make(again, x.Out...)
		bytes, err := x.Workspace(kit.Forward)
		t.step(repeated(x.Name, again), x.In, x.Out, bytes, err, x.Forward)
	}
	if x.Backward != nil {
		o.backward = func() { t.opBackward(x) }
	}
	t.append(o)
}

// Loss says that a tensor of one float32 is what training makes small, and an output. The backward
// pass begins there. A loss is the last of a forward pass.
func (t *Tape) Loss(v *Value) {
	t.Output(v)
	if v.node.dtype != dtype.Float32 || v.view.NumElements() != 1 {
		t.failf("loss %s is %v %v, not one float32", v.Name(), v.node.dtype, v.view.Shape)
	}
	if t.pass < Gradients {
		return
	}
	t.scale = t.Input("loss scale", dtype.Float32, v.view.Shape...)
	v.node.gradient = &gradient{v: t.scale, written: []region{t.whole(v.node)}}
}
