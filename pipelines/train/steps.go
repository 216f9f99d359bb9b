package train

import (
	"slices"

	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// This file turns ops into steps of the program.

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
