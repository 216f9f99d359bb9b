package train

import (
	"cmp"
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
func (t *Tape) Fail(err error) { t.err = cmp.Or(t.err, err) }

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

// append appends an op and its forward pass. Nil values are none.
func (t *Tape) append(o *op) {
	o.scope, o.block = t.scope, t.block
	for _, list := range []*[]*Value{&o.in, &o.out, &o.saved} {
		*list = slices.DeleteFunc(slices.Clone(*list), func(v *Value) bool { return v == nil })
	}
	for _, v := range o.in {
		if v.node.consumed {
			t.failf("%s reads %s, which another op has written over", o.name, v.Name())
		}
		v.node.read = true
	}
	for _, in := range o.in {
		for _, out := range o.out {
			out.node.wanted = out.node.wanted || o.backward != nil && in.node.wanted
		}
	}
	t.ops = append(t.ops, o)
	if o.block != nil {
		o.block.ops = append(o.block.ops, o)
	}
	o.forward(false)
}

// derive appends the backward pass, from the loss.
func (t *Tape) derive() {
	if t.scale == nil {
		t.failf("a plan of pass %v needs a loss: Tape.Loss", t.pass)
		return
	}
	again := map[*block]bool{}
	for _, o := range slices.Backward(t.ops) {
		reached := slices.ContainsFunc(o.out, func(v *Value) bool { return v.node.gradient != nil })
		if o.backward == nil || !reached {
			continue
		}
		if b := o.block; b != nil && t.o.Checkpoint != Off && !again[b] {
			again[b] = true
			t.again(b)
		}
		t.scope = o.scope
		o.backward()
	}
	t.scope = ""
}

// again appends what the backward pass of a block needs of its forward pass and what was not kept.
func (t *Tape) again(b *block) {
	lost := map[*node]bool{}
	lose := func(list []*Value) {
		for _, v := range list {
			if v != nil && v.node.block == b && v.node.lost(t.o.Checkpoint) {
				lost[v.node] = true
			}
		}
	}
	var ops []*op
	for _, o := range slices.Backward(b.ops) {
		if o.backward != nil {
			lose(o.saved)
		}
		if !slices.ContainsFunc(o.out, func(v *Value) bool { return lost[v.node] }) {
			continue
		}
		ops = append(ops, o)
		if o.again != nil {
			lose(o.again())
		} else {
			lose(o.in)
		}
	}
	for _, o := range slices.Backward(ops) {
		t.scope = o.scope
		o.forward(true)
	}
}

// make gives the outputs of an op their memory. Again leaves out what is kept.
func (t *Tape) make(again bool, outputs ...*Value) {
	for _, v := range outputs {
		if v == nil || again && !v.node.lost(t.o.Checkpoint) {
			continue
		}
		n := v.node
		n.memory = t.prog.Tensor(repeated(n.scope+n.name, again), n.dtype, n.shape...)
		if n.output {
			t.prog.Output(n.memory)
		}
	}
}

// repeated returns the name of a step or tensor that is there for the second time.
func repeated(name string, again bool) string {
	if again {
		return name + ", again"
	}
	return name
}

// workspaceOf begins the names of workspaces.
const workspaceOf = "workspace of "

// step appends a step, whose name begins with the scope. It reads in and writes out; what it adds to is in both, and nil
// is none. Bytes and err are what Workspace of a package returned; the tape keeps the error, with the name of the step.
func (t *Tape) step(name string, in, out []*Value, bytes int64, err error, f func(c *vk.Cmd, m Call) error) {
	name = t.scope + name
	if err != nil {
		t.failf("%s: %w", name, err)
	}
	for _, v := range out {
		if v != nil {
			for _, param := range v.node.gradientOf {
				t.complete[param] = t.prog.Steps() + 1
			}
		}
	}
	scratch := t.prog.Scratch(workspaceOf+name, bytes)
	reads, read := operands(in)
	writes, written := operands(out)
	t.prog.Step(name, reads, append(writes, scratch), func(c *vk.Cmd) error {
		return f(c, Call{In: read(), Out: written(), Workspace: scratch.Buffer()})
	})
}

// unused returns memory for a gradient that a kernel writes and nobody wants.
func (t *Tape) unused(v *Value) *Value {
	to := t.Tensor("gradient of "+v.node.name+", unused", v.node.dtype, v.node.shape...)
	t.make(false, to)
	return v.in(to)
}

// opBackward appends the backward pass of a call of a caller's kernels.
func (t *Tape) opBackward(x Op) {
	var dins, douts []*Value
	var done []func()
	for _, p := range t.into(x.In...) {
		v, f := t.fresh(p)
		dins, done = append(dins, v), append(done, f)
	}
	for i, v := range x.In {
		if dins[i] == nil && slices.Contains(x.Together, v) {
			dins[i] = t.unused(v)
		}
	}
	for _, v := range x.Out {
		douts = append(douts, grad(v))
	}
	read := func(list []*Value) []*Value {
		read := make([]*Value, len(list))
		for i, v := range list {
			if slices.Contains(x.Reads, v) {
				read[i] = v
			}
		}
		return read
	}
	in, n, end := slices.Concat(read(x.In), read(x.Out), douts), len(x.In), len(x.In)+len(x.Out)
	bytes, err := x.Workspace(kit.Backward)
	t.step(x.Name+", backward", in, dins, bytes, err, func(c *vk.Cmd, m Call) error {
		return x.Backward(c, Call{In: m.In[:n], Out: m.In[n:end], DOut: m.In[end:], DIn: m.Out, Workspace: m.Workspace})
	})
	for _, f := range done {
		f()
	}
}

// Params lists the parameters that a forward pass names, in this order.
func Params(caps *vk.Caps, f Func, o Options) ([]Param, error) {
	t := newTape(caps, o, Forward, PlanOptions{})
	f(t)
	return t.params, t.err
}

// newTape returns a tape without ops.
func newTape(caps *vk.Caps, o Options, pass Pass, p PlanOptions) *Tape {
	return &Tape{
		caps: caps, o: p, format: o.DType, pass: pass, frozen: o.frozen, prog: record.New("train"),
		nodes: map[string]*node{}, inputs: map[string]*Value{}, outputs: map[string]*Value{},
		counts: map[int]*Value{}, complete: map[string]int{}, regions: map[string]region{},
	}
}

// build makes the program of a plan, and plans its memory.
func build(caps *vk.Caps, f Func, pass Pass, o Options, p PlanOptions) (*Tape, *Memory, error) {
	if err := o.Validate(); err != nil {
		return nil, nil, err
	}
	if pass > o.Pass {
		return nil, nil, fmt.Errorf("train: a plan of pass %v is beyond its model's, %v", pass, o.Pass)
	}
	t := newTape(caps, o, pass, p)
	f(t)
	if t.err == nil && pass >= Gradients {
		t.derive()
	}
	if t.err != nil {
		return nil, nil, t.err
	}
	plan, err := t.prog.Plan(int64(min(caps.MaxAllocationBytes, caps.MaxBufferBytes)))
	if err != nil {
		return nil, nil, fmt.Errorf("train: %w", err)
	}
	if t.layout, err = newLayout(caps, t.params, &o); err != nil {
		return nil, nil, err
	}
	m := &Memory{Plan: plan, Checkpoint: p.Checkpoint}
	for _, x := range t.layout.parts() {
		m.Parts, m.Model = hold(m.Parts, x.name, x.bytes()), m.Model+x.bytes()
	}
	return t, m, nil
}
