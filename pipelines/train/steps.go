package train

import (
	"slices"

	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// This file turns ops into steps of the program.

// append appends an op and its forward pass.
func (t *Tape) append(o *op) {
	o.scope, o.block = t.scope, t.block
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
			if n := v.node; n.block == b && n.lost(t.o.Checkpoint) {
				lost[n] = true
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
		if n := v.node; !again || n.lost(t.o.Checkpoint) {
			n.memory = t.prog.Tensor(repeated(n.scope+n.name, again), n.dtype, n.shape...)
			if n.output {
				t.prog.Output(n.memory)
			}
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

// at returns the memory that v has at this step.
func (t *Tape) at(v *Value) operand { return v.node.operand().in(v.view) }

// all returns the memory of values, nil ones as nothing.
func (t *Tape) all(list []*Value) []operand {
	operands := make([]operand, len(list))
	for i, v := range list {
		operands[i] = operand{view: func() (none vk.Tensor) { return none }}
		if v != nil {
			operands[i] = t.at(v)
		}
	}
	return operands
}

// views returns the tensors of operands.
func views(list []operand) (tensors []vk.Tensor) {
	for _, o := range list {
		tensors = append(tensors, o.view())
	}
	return tensors
}

// workspaceOf begins the names of workspaces.
const workspaceOf = "workspace of "

// scratch returns the workspace of a step. Bytes and err are what Workspace of a package returned; the
// tape keeps the error, with the name of the step.
func (t *Tape) scratch(step string, bytes int64, err error) *record.Tensor {
	if err != nil {
		t.failf("%s%s: %w", t.scope, step, err)
	}
	return t.prog.Scratch(workspaceOf+t.scope+step, bytes)
}

// scratch returns the workspace of a pass.
func (x *Op) scratch(t *Tape, step string, pass kit.Pass) *record.Tensor {
	if x.Workspace == nil {
		return t.scratch(step, 0, nil)
	}
	bytes, err := x.Workspace(pass)
	return t.scratch(step, bytes, err)
}

// step appends a step, whose name begins with the scope.
func (t *Tape) step(name string, reads, writes []operand, scratch *record.Tensor, f func(c *vk.Cmd) error) {
	for _, o := range writes {
		for _, name := range o.gradientOf {
			t.complete[name] = t.prog.Steps() + 1
		}
	}
	t.prog.Step(t.scope+name, memoryOf(reads), append(memoryOf(writes), scratch), f)
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
	in, out, dout, din := t.all(read(x.In)), t.all(read(x.Out)), t.all(douts), t.all(dins)
	name := x.Name + ", backward"
	scratch := x.scratch(t, name, kit.Backward)
	t.step(name, slices.Concat(in, out, dout), din, scratch, func(c *vk.Cmd) error {
		return x.Backward(c, Call{
			In: views(in), Out: views(out), DOut: views(dout), DIn: views(din), Workspace: scratch.Buffer(),
		})
	})
	for _, f := range done {
		f()
	}
}
