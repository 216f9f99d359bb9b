package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/internal/spirv"
)

// A place is an instruction of the source. Kernels share functions, and a function is
// called from several places: its findings are one.
type place struct {
	function string
	kind     string // see module.kind
	number   int    // of its kind in the function, from 1
	line     string // of a module compiled with -g; no part of the name
}

func (p place) String() string { return fmt.Sprintf("%s %s#%d", p.function, p.kind, p.number) }

// A class says what is wrong with a place.
type class string

const (
	// inside: not all invocations that must come to the instruction together need come
	// to it at all.
	inside class = "inside"
	// after: they all come, but a branch before divided them, and nothing that the
	// specification knows has brought them together since.
	after class = "after"
	// merged: a branch before divided them, and they are together by the promise of the
	// specification alone, not by a barrier. No fault.
	merged class = "merged"
	// operand: they come together, but with operands that must be the same, and need not be.
	operand class = "operand"
)

// A finding is a place and one of the branches that it is because of.
type finding struct {
	class class
	place place
	cause place // of class operand: the place itself
}

// analyse returns the findings of a module. Named has the values of boolean
// specialization constants. The flow of control may trust the promise, and the one that the
// module's execution mode makes.
func analyse(m *module, named map[string]bool, promise promise) ([]finding, error) {
	p, err := flatten(m, named)
	if err != nil {
		return nil, err
	}
	p.spread()
	if m.modes[spirv.ModeSubgroupUniform] {
		promise = max(promise, bySubgroup)
	}
	if m.modes[spirv.ModeMaximallyReconverges] {
		promise = max(promise, maximal)
	}
	a := analysis{p: p, numbers: map[place]int{}, found: map[finding]bool{}}
	p.trace(promise, a.mark)
	if err := a.look(after); err != nil {
		return nil, err
	}
	p.trace(never, a.mark)
	if err := a.look(merged); err != nil {
		return nil, err
	}
	var list []finding
	for f := range a.found {
		if f.class == merged && a.found[finding{after, f.place, f.cause}] {
			continue
		}
		list = append(list, f)
	}
	return list, nil
}

func compareFindings(a, b finding) int {
	return cmp.Or(cmp.Compare(a.class, b.class), comparePlaces(a.place, b.place), comparePlaces(a.cause, b.cause))
}

func comparePlaces(a, b place) int {
	return cmp.Or(strings.Compare(a.function, b.function), strings.Compare(a.kind, b.kind), cmp.Compare(a.number, b.number),
		strings.Compare(a.line, b.line))
}

// An analysis collects the findings of a program.
type analysis struct {
	p       *program
	places  []place // of branches
	numbers map[place]int
	found   map[finding]bool
}

func (a *analysis) place(n *node) place {
	return place{n.at.f.name, a.p.m.kind(n.instruction), n.number, n.line}
}

// mark numbers the place of a branch.
func (a *analysis) mark(n *node) int {
	p := a.place(n)
	i, ok := a.numbers[p]
	if !ok {
		i = len(a.places)
		a.numbers[p] = i
		a.places = append(a.places, p)
	}
	return i
}

// look judges every convergent instruction by the flow that was traced last. What that
// says is of the given class.
func (a *analysis) look(class class) error {
	for _, b := range a.p.blocks {
		f := b.in.clone()
		for _, n := range b.nodes {
			if a.p.m.convergent(n.instruction) {
				if err := a.check(n, f, class); err != nil {
					return err
				}
			}
			a.p.pass(&f, n)
		}
	}
	return nil
}

func (a *analysis) check(n *node, f flow, class class) error {
	need := sameInSubgroup
	if a.p.isBarrier(n, scopeWorkgroup) {
		need = sameInWorkgroup
	}
	here := a.place(n)
	if n.at.level > need {
		for _, d := range a.deciders(n.at, need) {
			a.found[finding{inside, here, a.place(d.branch)}] = true
		}
		return nil
	}
	for _, i := range n.mustAgree() {
		if a.p.arg(n, i) == divergent {
			a.found[finding{operand, here, here}] = true
		}
	}
	// The invocation that has an element calls the function for it.
	if callee := n.callback(); callee != 0 {
		if err := a.callback(here, callee); err != nil {
			return err
		}
	}
	if n.op == spirv.OpControlBarrier {
		return nil // it is what brings invocations together
	}
	for i, cause := range a.places {
		if f.split.Bit(i) == 1 {
			a.found[finding{class, here, cause}] = true
		}
	}
	return nil
}

// mustAgree are the operands that must be the same in the subgroup: where a matrix is
// in memory, and in which order.
func (n *node) mustAgree() []int {
	switch n.op {
	case spirv.OpMatrixLoad:
		return []int{0, 1, 2}
	case spirv.OpMatrixStore:
		return []int{0, 2, 3}
	}
	return nil
}

// callback is the function that an instruction on matrices calls, or 0.
func (n *node) callback() id {
	switch n.op {
	case spirv.OpMatrixReduce:
		return id(n.instruction.args[2])
	case spirv.OpMatrixPerElement:
		return id(n.instruction.args[1])
	}
	return 0
}

// callback checks a function that is called at no certain time: it must compute, and
// nothing else.
func (a *analysis) callback(from place, callee id) error {
	f := a.p.m.functions[callee]
	for _, b := range f.blocks {
		for i := range b.code {
			in := &b.code[i]
			global := false
			if in.op == spirv.OpStore {
				_, global = a.p.m.variables[id(in.args[0])]
			}
			switch {
			case a.p.m.convergent(in):
				a.found[finding{inside, place{f.name, a.p.m.kind(in), in.number, in.line}, from}] = true
			case in.op == spirv.OpFunctionCall, global:
				return fmt.Errorf("%s, which %s calls, does more than tools/converge understands there", f.name, from)
			}
		}
	}
	return nil
}

// deciders are the blocks whose branches decide, above a level, whether b runs.
func (a *analysis) deciders(b *block, above level) []*block {
	var list []*block
	seen := map[*block]bool{}
	var visit func(b *block)
	visit = func(b *block) {
		for _, d := range b.deciders {
			if seen[d] {
				continue
			}
			seen[d] = true
			if d.decision(a.p) > above {
				list = append(list, d)
			}
			visit(d)
		}
	}
	visit(b)
	return list
}
