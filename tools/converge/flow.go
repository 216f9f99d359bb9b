package main

import (
	"math/big"

	"github.com/flashvk/flashvk/internal/spirv"
)

// A flow is what has happened to the control flow on the way to a place: the branches
// that invocations decided for themselves, and that nothing has undone.
type flow struct {
	split  big.Int // branches that divided a subgroup, by the numbers of their places: bits
	groups bool    // a branch divided the workgroup between subgroups
}

func (f *flow) join(g flow) bool {
	before, groups := f.clone(), f.groups
	f.split.Or(&f.split, &g.split)
	f.groups = f.groups || g.groups
	return f.split.Cmp(&before.split) != 0 || f.groups != groups
}

func (f flow) clone() flow {
	g := flow{groups: f.groups}
	g.split.Set(&f.split)
	return g
}

// A promise is how far the specification lets invocations come together where a
// construct ends.
type promise int

const (
	// never: not before a barrier.
	never promise = iota
	// core: at the merge block of a construct that the whole workgroup entered
	// together and left through that block (SPIR-V, 2.2.5, "Uniform control flow").
	core
	// bySubgroup: the same of a subgroup (SubgroupUniformControlFlowKHR).
	bySubgroup
	// maximal: at the merge block of any construct, those that entered it together
	// (MaximallyReconvergesKHR).
	maximal
)

// trace finds the flow into every block under a promise.
func (p *program) trace(promise promise, mark func(*node) int) {
	construct := map[*block]*region{} // by merge block
	for _, b := range p.blocks {
		b.in, b.out = flow{}, flow{}
		if b.merge != nil {
			construct[b.merge] = p.region(b)
		}
	}
	for changed := true; changed; {
		changed = false
		for _, b := range p.blocks {
			in := b.in.clone()
			for _, a := range b.prev {
				in.join(a.out)
			}
			if r := construct[b]; r != nil {
				in = p.merged(in, r, promise)
			}
			if promise == maximal && b.calledFrom != nil {
				in = b.calledFrom.out.clone() // a call ends as a construct does
			}
			b.in = in
			if b.out.join(p.through(b, mark)) {
				changed = true
			}
		}
	}
}

// through returns the flow out of a block.
func (p *program) through(b *block, mark func(*node) int) flow {
	out := b.in.clone()
	for _, n := range b.nodes {
		p.pass(&out, n)
	}
	if b.decision(p) == divergent {
		out.split.SetBit(&out.split, mark(b.branch), 1)
	}
	if b.decision(p) != sameInWorkgroup {
		out.groups = true
	}
	return out
}

// pass changes a flow by a node: a barrier that a subgroup reaches together brings its
// invocations together, one of the workgroup all.
func (p *program) pass(f *flow, n *node) {
	if n.op != spirv.OpControlBarrier || n.at.level == divergent {
		return
	}
	f.split = big.Int{}
	if p.isBarrier(n, scopeWorkgroup) && n.at.level == sameInWorkgroup {
		f.groups = false
	}
}

func (p *program) isBarrier(n *node, scope uint32) bool {
	return n.op == spirv.OpControlBarrier && p.m.is(n.instruction.args[0], scope)
}

// A region is a construct: what its header dominates and its merge block does not.
type region struct {
	header *block
	entry  []*block // the blocks that it is entered from
	leaks  []*block // those that it is left from other than to the merge block
}

func (p *program) region(header *block) *region {
	r := &region{header: header}
	for _, a := range header.prev {
		if !dominates(header, a) {
			r.entry = append(r.entry, a)
		}
	}
	inside := func(b *block) bool { return dominates(header, b) && !dominates(header.merge, b) }
	for _, b := range p.blocks {
		if !inside(b) {
			continue
		}
		out := len(b.next) == 0 // the program's end
		for _, s := range b.next {
			// The next turn of a loop is no way out of it.
			out = out || s != header.merge && (!inside(s) || s == header && !header.loop)
		}
		if out {
			r.leaks = append(r.leaks, b)
		}
	}
	return r
}

// merged returns the flow at a region's merge block. In has all that happened on the way there.
func (p *program) merged(in flow, r *region, promise promise) flow {
	if promise == never {
		return in
	}
	var entry flow
	level := sameInWorkgroup
	if r.header.loop {
		for _, a := range r.entry {
			entry.join(a.out)
			level = max(level, a.level, a.decision(p))
		}
	} else {
		entry = r.header.in.clone()
		for _, n := range r.header.nodes {
			p.pass(&entry, n)
		}
		level = r.header.level
	}
	if promise == maximal {
		return entry
	}
	for _, b := range r.leaks {
		level = max(level, b.level, b.decision(p))
	}
	switch {
	case level == sameInWorkgroup && entry.split.Sign() == 0 && !entry.groups:
		return flow{}
	case level <= sameInSubgroup && entry.split.Sign() == 0 && promise == bySubgroup:
		in.split = big.Int{}
	}
	return in
}
