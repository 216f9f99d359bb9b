package main

import (
	"slices"

	"gonum.org/v1/gonum/graph"
	dominators "gonum.org/v1/gonum/graph/flow"
	"gonum.org/v1/gonum/graph/simple"
)

// order finds the reachable blocks and puts them in reverse postorder. Edges to blocks
// that end with OpUnreachable are dropped: nothing goes there.
func (p *program) order(entry *block) {
	seen := map[*block]bool{}
	var visit func(b *block)
	visit = func(b *block) {
		seen[b] = true
		b.next = slices.DeleteFunc(b.next, func(s *block) bool { return s.dead })
		for _, s := range b.next {
			if !seen[s] {
				visit(s)
			}
		}
		p.blocks = append(p.blocks, b)
	}
	visit(entry)
	slices.Reverse(p.blocks)
	for i, b := range p.blocks {
		b.order = i
		for _, s := range b.next {
			s.prev = append(s.prev, b)
		}
		if len(b.next) < 2 {
			b.branch = nil
		}
		if !seen[b.merge] {
			b.merge = nil
		}
	}
}

// dominate finds the immediate dominators, and the immediate postdominators: the same, backwards, from a
// virtual end that all blocks without a next one go to.
func (p *program) dominate() {
	forth, back, end := simple.NewDirectedGraph(), simple.NewDirectedGraph(), simple.Node(len(p.blocks))
	edge := func(from, to simple.Node) {
		if from != to {
			forth.SetEdge(simple.Edge{F: from, T: to})
			back.SetEdge(simple.Edge{F: to, T: from})
		}
	}
	for _, b := range p.blocks {
		for _, s := range b.next {
			edge(simple.Node(b.order), simple.Node(s.order))
		}
		if len(b.next) == 0 {
			edge(simple.Node(b.order), end)
		}
	}
	block := func(n graph.Node) *block {
		if n == nil || n == end {
			return nil
		}
		return p.blocks[n.ID()]
	}
	before, after := dominators.Dominators(simple.Node(0), forth), dominators.Dominators(end, back)
	for i, b := range p.blocks {
		b.idom, b.ipdom, b.size = block(before.DominatorOf(int64(i))), block(after.DominatorOf(int64(i))), 1
	}
	for _, b := range slices.Backward(p.blocks[1:]) {
		b.idom.size += b.size
	}
	free := make([]int, len(p.blocks)) // the first place of a block's that is not taken
	for _, b := range p.blocks[1:] {
		b.at = free[b.idom.order] + 1
		free[b.order], free[b.idom.order] = b.at, free[b.idom.order]+b.size
	}
}

// dominates reports whether every way to b goes through a.
func dominates(a, b *block) bool { return a.at <= b.at && b.at < a.at+a.size }

// decide finds control dependences: the branch of a decides whether b runs if b comes
// on one way from a in any case, and not on another. An early return, a break or a
// continue so decides about all that it jumps over, and a loop's condition about the
// next turn of the loop.
func (p *program) decide() {
	for _, a := range p.blocks {
		if a.branch == nil {
			continue
		}
		for _, s := range a.next {
			for b := s; b != nil && b != a.ipdom; b = b.ipdom {
				if !slices.Contains(b.deciders, a) {
					b.deciders = append(b.deciders, a)
				}
			}
		}
	}
}
