// Package record makes one recording of many kernels, with one plan of the memory between them.
//
// A Program is a static list of steps. A step says which tensors it reads and writes, so the
// program knows from which step to which a tensor is needed. Tensors that are never needed at
// once share memory:
//
//	step     reads  writes      a  b  c  d
//	norm     a      b           █  █
//	product  b      c           █  █  █
//	silu     c      d           █     █  █      b and d may lie at one place, if they are large
//	sum      a, d   a           █        █
//
// Plan finds a place for each tensor. It says how much memory they take, and which of them hold
// it, before anything is allocated. Allocate takes the memory. Record records the steps into a
// vk.Cmd, to be submitted again and again.
//
// Tensors that outlive a submission, such as weights, belong to the caller. The program does not
// know them.
package record

import (
	"errors"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A Program is a list of steps and their tensors. It is for one goroutine.
type Program struct {
	name    string
	steps   []step
	tensors []*Tensor
	err     error // the first of Step
	memory  *Memory
	late    string // the first step or tensor that was added or changed after Plan
	buffers []*vk.Buffer
}

// A step is what one call of a kernel package records.
type step struct {
	name   string
	record func(c *vk.Cmd) error
}

// A Tensor is memory that a Program plans.
type Tensor struct {
	name        string
	dtype       dtype.DType
	shape       []int
	bytes       int64
	first, last int // steps; first is -1 for an input, last the number of steps for an output
	writes      int
	chunk       int
	offset      int64
	view        vk.Tensor
}

// New returns a program without steps. Its memory has the same name.
func New(name string) *Program { return &Program{name: name} }

// unused is the first step of a tensor that no step has met.
const unused = -2

// Tensor returns a contiguous tensor. Its first step must write it.
func (p *Program) Tensor(name string, t dtype.DType, shape ...int) *Tensor {
	x := &Tensor{name: name, dtype: t, shape: shape, bytes: int64(t.Size()), first: unused}
	for _, n := range shape {
		x.bytes *= int64(n)
	}
	p.tensors = append(p.tensors, x)
	p.outdate(name)
	return x
}

// Input returns a tensor that the caller writes before each submission. It shares memory with no
// other.
func (p *Program) Input(name string, t dtype.DType, shape ...int) *Tensor {
	x := p.Tensor(name, t, shape...)
	x.first, x.last, x.writes = -1, -1, 1
	return p.Output(x)
}

// Output keeps t until the end of the program, so that the caller can read it after a submission.
// It returns t.
func (p *Program) Output(t *Tensor) *Tensor {
	t.last = 1 << 30
	p.outdate(t.name)
	return t
}

// Scratch returns memory for one step, or nil for 0 bytes.
func (p *Program) Scratch(name string, bytes int64) *Tensor {
	if bytes == 0 {
		return nil
	}
	return p.Tensor(name, dtype.Float32, int((bytes+3)/4))
}

// Step appends a step. F records it. Nil tensors in the lists are ignored. A tensor that is
// updated is in both lists, scratch memory among the writes. Reading a tensor that no earlier
// step writes is an error, which Plan returns. A step that comes after Plan needs another Plan.
func (p *Program) Step(name string, reads, writes []*Tensor, f func(c *vk.Cmd) error) {
	n := len(p.steps)
	p.steps = append(p.steps, step{name, f})
	p.outdate("step " + name)
	meet := func(t *Tensor) {
		if t.first == unused {
			t.first = n
		}
		t.last = max(t.last, n)
	}
	for _, t := range reads {
		if t == nil {
			continue
		}
		if t.writes == 0 && p.err == nil {
			p.err = fmt.Errorf("record: step %s reads %s, which no step before it writes", name, t.name)
		}
		meet(t)
	}
	for _, t := range writes {
		if t != nil {
			meet(t)
			t.writes++
		}
	}
}

// outdate notes that the last plan does not know what was added or changed.
func (p *Program) outdate(what string) {
	if p.memory != nil && p.late == "" {
		p.late = what
	}
}

// current returns an error unless the last plan knows all steps and tensors.
func (p *Program) current(call string) error {
	if p.memory == nil {
		return fmt.Errorf("record: %s comes after Plan", call)
	}
	if p.late != "" {
		return fmt.Errorf("record: %s came after Plan, which must know it before %s", p.late, call)
	}
	return nil
}

// Steps returns the number of steps.
func (p *Program) Steps() int { return len(p.steps) }

// check returns an error if a tensor is read before it is written, in no step, or empty.
func (p *Program) check() error {
	if p.err != nil {
		return p.err
	}
	for _, t := range p.tensors {
		switch {
		case t.first == unused:
			return fmt.Errorf("record: no step reads or writes %s", t.name)
		case t.bytes <= 0:
			return fmt.Errorf("record: %s has shape %v: it has no elements", t.name, t.shape)
		}
	}
	return nil
}

var errAllocated = errors.New("record: memory is allocated already")

// Check returns the error that Allocate and Record would have on a device with memory for the
// program, such as a tensor that is larger than a kernel sees. It allocates nothing and compiles the
// kernels.
func (p *Program) Check(d *vk.Device) error {
	err := p.place(func(name string, bytes int64) (*vk.Buffer, error) { return d.Placeholder(name, bytes), nil })
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = d.Measure(func(c *vk.Cmd) error { return p.Record(c, nil) })
	return err
}

// Allocate takes the planned memory. Close frees it.
func (p *Program) Allocate(d *vk.Device) error { return p.place(d.NewBuffer) }

// place gives the tensors their places in buffers that newBuffer returns.
func (p *Program) place(newBuffer func(name string, bytes int64) (*vk.Buffer, error)) (err error) {
	if err := p.current("Allocate"); err != nil {
		return err
	}
	if p.buffers != nil {
		return errAllocated
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	for i, bytes := range p.memory.Chunks {
		b, err := newBuffer(fmt.Sprintf("%s %d", p.name, i), bytes)
		if err != nil {
			return fmt.Errorf("record: %w", err)
		}
		p.buffers = append(p.buffers, b)
	}
	for _, t := range p.tensors {
		slice, err := p.buffers[t.chunk].Slice(t.offset, t.bytes)
		if err != nil {
			return fmt.Errorf("record: %s: %w", t.name, err)
		}
		t.view = vk.View(slice, t.dtype, t.shape...)
	}
	return nil
}

// Record records all steps into c. Steps that do not depend on each other run side by side
// (vk.Cmd.Reorder). If before is not nil, it is called with the name of each step before that
// step, and the kernels keep the order of the steps.
func (p *Program) Record(c *vk.Cmd, before func(step string)) (err error) {
	defer c.Keep(&err)
	if p.buffers == nil {
		return errors.New("record: Record comes after Allocate")
	}
	if err := p.current("Record"); err != nil {
		return err
	}
	if before == nil {
		defer c.Reorder()()
	}
	for _, s := range p.steps {
		if before != nil {
			before(s.name)
		}
		if err := s.record(c); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return c.Err()
}

// Close frees the memory once the submissions so far have finished. It is idempotent and may be
// called on nil.
func (p *Program) Close() {
	if p == nil {
		return
	}
	for _, b := range p.buffers {
		b.Close()
	}
	p.buffers = nil
	for _, t := range p.tensors {
		t.view = vk.Tensor{}
	}
}

// View returns the tensor in its memory, after Allocate. It is zero for nil.
func (t *Tensor) View() vk.Tensor {
	if t == nil {
		return vk.Tensor{}
	}
	v := t.view
	v.Shape, v.Strides = slices.Clone(v.Shape), slices.Clone(v.Strides)
	return v
}

// Buffer returns the memory of t, after Allocate. It is nil for nil.
func (t *Tensor) Buffer() *vk.Buffer {
	if t == nil {
		return nil
	}
	return t.view.Buffer
}

// Name returns the name of t.
func (t *Tensor) Name() string { return t.name }
