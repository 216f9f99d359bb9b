package main

import "slices"

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

// immediate returns the immediate dominators of blocks in reverse postorder, of which the first dominates
// all (Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm, 2001).
func immediate(list []*block, prev func(*block) []*block) map[*block]*block {
	order, dom := map[*block]int{}, map[*block]*block{list[0]: list[0]}
	for i, b := range list {
		order[b] = i
	}
	for changed := true; changed; {
		changed = false
		for _, b := range list[1:] {
			var next *block
			for _, a := range prev(b) {
				if dom[a] == nil {
					continue
				}
				if next == nil {
					next = a
				}
				for a != next {
					if order[a] > order[next] {
						a = dom[a]
					} else {
						next = dom[next]
					}
				}
			}
			if next != dom[b] {
				dom[b], changed = next, true
			}
		}
	}
	return dom
}

func (p *program) dominate() {
	for b, dom := range immediate(p.blocks, func(b *block) []*block { return b.prev }) {
		b.idom = dom
	}
}

// dominates reports whether every way to b goes through a.
func dominates(a, b *block) bool {
	for b.order > a.order {
		b = b.idom
	}
	return a == b
}

// postdominate finds the immediate postdominators: the same, backwards, from a virtual
// end that all blocks without a next one go to.
func (p *program) postdominate() {
	end := &block{}
	for _, b := range p.blocks {
		if len(b.next) == 0 {
			end.prev = append(end.prev, b)
		}
	}
	var list []*block // in postorder of the reversed graph
	seen := map[*block]bool{}
	var visit func(b *block)
	visit = func(b *block) {
		seen[b] = true
		for _, a := range b.prev {
			if !seen[a] {
				visit(a)
			}
		}
		list = append(list, b)
	}
	visit(end)
	slices.Reverse(list)
	after := immediate(list, func(b *block) []*block {
		if len(b.next) == 0 {
			return []*block{end}
		}
		return b.next
	})
	for b, dom := range after {
		if dom != end {
			b.ipdom = dom
		}
	}
}

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
