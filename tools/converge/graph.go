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

// dominate finds the immediate dominators (Cooper, Harvey and Kennedy, A Simple, Fast
// Dominance Algorithm, 2001).
func (p *program) dominate() {
	entry := p.blocks[0]
	entry.idom = entry
	for changed := true; changed; {
		changed = false
		for _, b := range p.blocks[1:] {
			var dom *block
			for _, a := range b.prev {
				if a.idom == nil {
					continue
				}
				if dom == nil {
					dom = a
				}
				for x := a; x != dom; {
					if x.order > dom.order {
						x = x.idom
					} else {
						dom = dom.idom
					}
				}
			}
			if dom != b.idom {
				b.idom, changed = dom, true
			}
		}
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
		b.backOrder = len(list)
	}
	visit(end)
	slices.Reverse(list)
	end.ipdom = end
	for changed := true; changed; {
		changed = false
		for _, b := range list[1:] {
			next := b.next
			if len(next) == 0 {
				next = []*block{end}
			}
			var dom *block
			for _, s := range next {
				if s.ipdom == nil {
					continue
				}
				if dom == nil {
					dom = s
				}
				for x := s; x != dom; {
					if x.backOrder < dom.backOrder {
						x = x.ipdom
					} else {
						dom = dom.ipdom
					}
				}
			}
			if dom != b.ipdom {
				b.ipdom, changed = dom, true
			}
		}
	}
	for _, b := range p.blocks {
		if b.ipdom == end {
			b.ipdom = nil
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
