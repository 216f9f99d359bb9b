package main

import "github.com/flashvk/flashvk/internal/spirv"

// A level says for which invocations a value is the same. They are ordered: what is
// made of two values has the greater level.
type level uint8

const (
	sameInWorkgroup level = iota
	sameInSubgroup
	divergent // invocations of a subgroup may differ
)

// spread finds the level of every value, every variable and every block. All begin as the same in
// the workgroup, and levels rise until nothing changes. So values that depend on each other in a
// loop are no worse than their first values.
func (p *program) spread() {
	p.findWritten()
	for changed := true; changed; {
		changed = false
		for _, b := range p.blocks {
			l := sameInWorkgroup
			for _, d := range b.deciders {
				l = max(l, d.decision(p), d.level)
			}
			if l > b.level {
				b.level, changed = l, true
			}
			for _, n := range b.nodes {
				if p.raise(n) {
					changed = true
				}
			}
		}
	}
}

// decision is the level of what chooses the block after b.
func (b *block) decision(p *program) level {
	if b.branch == nil {
		return sameInWorkgroup
	}
	return p.levels[b.branch.args[0]]
}

// findWritten finds the bindings that the module stores to, under any name.
func (p *program) findWritten() {
	for _, b := range p.blocks {
		for _, n := range b.nodes {
			switch {
			case n.op == spirv.OpStore, n.op == spirv.OpMatrixStore, n.op == spirv.OpMatrixStoreTensor, n.op > spirv.OpAtomicLoad && n.op <= spirv.OpAtomicXor:
				if r := p.roots[n.args[0]]; r != nil && r.binding >= 0 {
					p.written[r.binding] = true
				}
			}
		}
	}
}

// raise raises the levels of what a node makes, and reports whether one changed.
func (p *program) raise(n *node) bool {
	if n.op == spirv.OpStore {
		return p.store(p.roots[n.args[0]], max(p.arg(n, 0), p.arg(n, 1), n.at.level))
	}
	changed := false
	if n.op == spirv.OpExtInst { // modf and frexp may store through a pointer
		for _, a := range n.args {
			if r := p.roots[a]; r != nil && p.store(r, divergent) {
				changed = true
			}
		}
	}
	if n.result == none {
		return changed
	}
	l := p.made(n)
	if l > p.levels[n.result] {
		p.levels[n.result], changed = l, true
	}
	return changed
}

// store raises what an invocation's own variable holds.
func (p *program) store(r *root, l level) bool {
	if r.class != spirv.ClassFunction && r.class != spirv.ClassPrivate || l <= r.level {
		return false
	}
	r.level = l
	return true
}

// arg is the level of an operand. One that comes from a block which fewer invocations
// reach together, as the last turn of a loop that each leaves on its own, may be of
// different turns.
func (p *program) arg(n *node, i int) level {
	l := p.levels[n.args[i]]
	if from := p.defined[n.args[i]]; from != nil && from.level > n.at.level && p.roots[n.args[i]] == nil {
		l = max(l, from.level)
	}
	return l
}

// made is the level of a node's result.
func (p *program) made(n *node) level {
	all := sameInWorkgroup
	for i := range n.args {
		all = max(all, p.arg(n, i))
	}
	switch o := n.op; {
	case o == spirv.OpLoad:
		return max(all, p.loaded(p.roots[n.args[0]]))
	case o == spirv.OpPhi, o == spirv.OpFunctionCall && len(n.joins) > 1:
		for _, b := range n.joins {
			all = max(all, b.level, b.decision(p))
		}
		return all
	case o == spirv.OpUndef, o >= spirv.OpAtomicLoad && o <= spirv.OpAtomicXor:
		return divergent
	case o == spirv.OpSubgroupAll, o == spirv.OpSubgroupAny, o == spirv.OpSubgroupAllEqual, o == spirv.OpBroadcast, o == spirv.OpBroadcastFirst, o == spirv.OpBallot:
		return sameInSubgroup
	case o >= spirv.OpGroupIAdd && o <= spirv.OpGroupLogicalXor && n.instruction.args[1] == groupReduce:
		return sameInSubgroup
	case o == spirv.OpMatrixLength:
		return sameInWorkgroup
	case o >= spirv.OpElect && o <= spirv.OpQuadSwap, o == spirv.OpGroupRotate:
		return divergent
	case o >= spirv.OpMatrixLoad && o <= spirv.OpMatrixMulAdd, o == spirv.OpMatrixConvert, o >= spirv.OpMatrixReduce && o <= spirv.OpMatrixPerElement, o == spirv.OpMatrixTranspose:
		return divergent // elements are spread over the invocations
	}
	return all
}

// loaded is the level of what a variable holds, read at one place by all.
func (p *program) loaded(r *root) level {
	switch r.class {
	case spirv.ClassFunction, spirv.ClassPrivate:
		return r.level
	case spirv.ClassInput:
		if l, ok := builtinLevels[r.builtin]; ok {
			return l
		}
		return divergent
	case spirv.ClassPushConstant:
		return sameInWorkgroup
	case spirv.ClassUniform, spirv.ClassStorageBuffer:
		// What nobody stores is the same for all. What this kernel stores, another
		// invocation may store between two reads.
		if !p.written[r.binding] {
			return sameInWorkgroup
		}
	case spirv.ClassWorkgroup:
		// Shared memory does not change between two barriers; subgroups may read it on
		// different sides of a store that has no barrier.
		return sameInSubgroup
	}
	return divergent
}
