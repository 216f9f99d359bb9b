package main

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/internal/spirv"
)

// A value is a result of the flattened program: an id of the module in one call of
// its function.
type value int

const none value = -1

// A root is what a pointer points into: a variable, whole.
type root struct {
	variable
	level level // of what is in it: the join of all stores
}

// A node is an instruction in one call of its function.
type node struct {
	*instruction
	at     *block
	result value
	args   []value  // the operands that are values
	joins  []*block // of a phi, and of a call's result: the blocks that the values come from
}

// A block is a basic block, or the part of one up to a call, in one call of its
// function.
type block struct {
	f          *function
	nodes      []*node
	next, prev []*block
	branch     *node // what chooses between several next blocks; nil if there is one
	merge      *block
	loop       bool   // of the construct that ends at merge: a loop
	dead       bool   // ends with OpUnreachable
	calledFrom *block // where it goes on after a call: the block that called

	order    int // in reverse postorder
	idom     *block
	ipdom    *block   // nil: the end of the program
	at, size int      // of the blocks that it dominates, in an order in which these come one after the other
	deciders []*block // whose branches decide whether this block runs
	level    level    // of that decision: the join of their conditions and levels
	in, out  flow
}

// A program is a module with every call replaced by the function: so each call has
// its own arguments, and what a function does to control flow reaches its callers.
type program struct {
	m       *module
	blocks  []*block // reachable, in reverse postorder; the first is the entry
	levels  []level  // by value
	roots   []*root  // by value: of pointers
	defined map[value]*block
	known   map[id]bool  // constants that are given
	shared  map[id]value // of the module: constants and variables
	written map[int]bool // bindings that are stored to
}

// A frame is one call of a function.
type frame struct {
	p      *program
	f      *function
	stack  []*function
	values map[id]value
	first  map[id]*block // first parts of basic blocks, which branches go to
	last   map[id]*block // last parts, which phis come from
	phis   map[*node][]id
	exits  []exit
}

// An exit is a return.
type exit struct {
	from  *block
	value value
}

// flatten makes a module's program, with some of its specialization constants given.
func flatten(m *module, named map[string]bool) (*program, error) {
	p := &program{m: m, known: m.decide(named), defined: map[value]*block{}, shared: map[id]value{}, written: map[int]bool{}}
	entry, _, err := p.call(m.functions[m.main], nil, nil)
	if err != nil {
		return nil, err
	}
	p.order(entry)
	p.dominate()
	p.decide()
	return p, nil
}

// call adds a call of f, and returns its first block and its returns.
func (p *program) call(f *function, args []value, stack []*function) (*block, []exit, error) {
	if slices.Contains(stack, f) {
		return nil, nil, fmt.Errorf("%s calls itself", f.name)
	}
	fr := &frame{
		p: p, f: f, stack: append(slices.Clone(stack), f),
		values: map[id]value{}, first: map[id]*block{}, last: map[id]*block{}, phis: map[*node][]id{},
	}
	for i, param := range f.params {
		fr.values[param] = args[i]
	}
	for _, b := range f.blocks {
		fr.first[b.label] = &block{f: f}
	}
	for _, b := range f.blocks {
		at := fr.first[b.label]
		for i := range b.code {
			var err error
			if at, err = fr.add(at, &b.code[i]); err != nil {
				return nil, nil, err
			}
		}
		fr.last[b.label] = at
	}
	for n, labels := range fr.phis {
		for _, label := range labels {
			n.joins = append(n.joins, fr.last[label])
		}
	}
	return fr.first[f.blocks[0].label], fr.exits, nil
}

func (fr *frame) of(i id) value {
	p := fr.p
	if v, ok := fr.values[i]; ok {
		return v
	}
	if v, ok := p.shared[i]; ok {
		return v
	}
	v := value(len(p.levels))
	p.levels, p.roots = append(p.levels, sameInWorkgroup), append(p.roots, nil)
	if global, ok := p.m.variables[i]; ok {
		p.roots[v] = &root{variable: global}
		p.shared[i] = v
	} else if l, ok := p.m.globals[i]; ok {
		p.levels[v] = l
		p.shared[i] = v
	} else {
		fr.values[i] = v
	}
	return v
}

// list returns the values of ids.
func (fr *frame) list(words []uint32) []value {
	list := make([]value, len(words))
	for i, w := range words {
		list[i] = fr.of(id(w))
	}
	return list
}

// add adds an instruction to a block, and returns the block that the next one goes to.
func (fr *frame) add(at *block, in *instruction) (*block, error) {
	p, a := fr.p, in.args
	n := &node{instruction: in, at: at, result: none}
	if in.result != 0 {
		n.result = fr.of(in.result)
		p.defined[n.result] = at
	}
	form := forms[in.op]
	switch in.op {
	case spirv.OpFunctionCall:
		return fr.callNode(at, n)
	case spirv.OpVariable:
		p.roots[n.result] = &root{variable: variable{class: a[0], builtin: -1, binding: -1}}
		return at, nil
	case spirv.OpPhi:
		fr.phis[n] = nil
		for i := 0; i+1 < len(a); i += 2 {
			n.args = append(n.args, fr.of(id(a[i])))
			fr.phis[n] = append(fr.phis[n], id(a[i+1]))
		}
	case spirv.OpAccessChain, spirv.OpInBoundsAccess:
		n.args = fr.list(a)
		p.roots[n.result] = p.roots[n.args[0]]
	case spirv.OpSelect:
		n.args = fr.list(a)
		if yes, ok := p.known[id(a[0])]; ok {
			n.args = n.args[1+index(!yes):][:1]
		}
	case spirv.OpLoad, spirv.OpArrayLength:
		n.args = fr.list(a[:1])
	case spirv.OpStore:
		n.args = fr.list(a[:2])
	case spirv.OpLoopMerge, spirv.OpSelectionMerge, spirv.OpBranch, spirv.OpBranchConditional, spirv.OpSwitch, spirv.OpReturn, spirv.OpReturnValue, spirv.OpUnreachable:
		fr.leave(at, n)
	case spirv.OpMatrixLoad: // pointer, layout, stride
		n.args = fr.list(a[:3])
	case spirv.OpMatrixStore: // pointer, matrix, layout, stride
		n.args = fr.list(a[:4])
	case spirv.OpMatrixPerElement, spirv.OpMatrixReduce, spirv.OpMatrixLoadTensor, spirv.OpMatrixStoreTensor, spirv.OpMatrixMulAdd:
		n.args = fr.list(a[:1])
	case spirv.OpAtomicStore:
		n.args = fr.list(a[:1])
	default:
		if form.result {
			to := len(a)
			if form.values >= 0 {
				to = form.first + form.values
			}
			n.args = fr.list(a[form.first:to])
		}
	}
	if pointed(in.op) && p.roots[n.args[0]] == nil {
		return nil, fmt.Errorf("%s: instruction %d has a pointer that is no variable's", fr.f.name, in.op)
	}
	at.nodes = append(at.nodes, n)
	return at, nil
}

// leave adds what says where a block goes on.
func (fr *frame) leave(at *block, n *node) {
	a := n.instruction.args
	next := func(labels ...uint32) {
		for _, l := range labels {
			at.next = append(at.next, fr.first[id(l)])
		}
	}
	switch n.op {
	case spirv.OpLoopMerge, spirv.OpSelectionMerge:
		at.merge, at.loop = fr.first[id(a[0])], n.op == spirv.OpLoopMerge
	case spirv.OpBranch:
		next(a[0])
	case spirv.OpBranchConditional:
		if yes, ok := fr.p.known[id(a[0])]; ok {
			next(a[1+index(!yes)])
			return
		}
		n.args = fr.list(a[:1])
		at.branch = n
		next(a[1], a[2])
	case spirv.OpSwitch:
		n.args = fr.list(a[:1])
		at.branch = n
		next(a[1])
		for i := 3; i < len(a); i += 2 {
			next(a[i])
		}
	case spirv.OpReturn:
		fr.exits = append(fr.exits, exit{at, none})
	case spirv.OpReturnValue:
		fr.exits = append(fr.exits, exit{at, fr.of(id(a[0]))})
	case spirv.OpUnreachable:
		at.dead = true
	}
}

// pointed reports whether the first operand is a pointer that the analysis follows.
func pointed(o op) bool {
	switch o {
	case spirv.OpLoad, spirv.OpStore, spirv.OpAccessChain, spirv.OpInBoundsAccess, spirv.OpMatrixLoad, spirv.OpMatrixStore, spirv.OpMatrixLoadTensor, spirv.OpMatrixStoreTensor:
		return true
	}
	return o >= spirv.OpAtomicLoad && o <= spirv.OpAtomicXor
}

// callNode adds the function that n calls, and returns the block after it, which
// begins with n: the result.
func (fr *frame) callNode(at *block, n *node) (*block, error) {
	callee := fr.p.m.functions[id(n.instruction.args[0])]
	entry, exits, err := fr.p.call(callee, fr.list(n.instruction.args[1:]), fr.stack)
	if err != nil {
		return nil, err
	}
	at.next = []*block{entry}
	rest := &block{f: fr.f, nodes: []*node{n}, calledFrom: at}
	n.at = rest
	fr.p.defined[n.result] = rest
	for _, e := range exits {
		e.from.next = append(e.from.next, rest)
		n.joins = append(n.joins, e.from)
		if e.value != none {
			n.args = append(n.args, e.value)
		}
	}
	return rest, nil
}

// index counts what is true.
func index(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
