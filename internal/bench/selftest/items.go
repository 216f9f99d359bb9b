package selftest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
)

// An item is a case on a path.
type item struct {
	suite *suite
	impl  attention.Impl
	c     *testCase
	path  *Path
	rank  int  // the order in which items are reported, and those of a path run
	alone bool // memory was too short beside other items

	worst   float64         // the largest error by what is allowed
	err     error           // what is wrong with it
	modules []vk.ModuleInfo // that its calls ran
}

// String says what is run.
func (it *item) String() string {
	return fmt.Sprintf("%v %v: %s", it.impl, it.path.What(), it.c.name)
}

func byRank(a, b *item) int { return cmp.Compare(a.rank, b.rank) }

// items lists the cases to run on all paths, the cheapest of each suite first.
func (r *run) items(suites []suite) []*item {
	var list []*item
	for _, impl := range r.Impls {
		for i := range suites {
			s := &suites[i]
			if s.impls != nil && !slices.Contains(s.impls, impl) {
				continue
			}
			for _, c := range s.cases {
				p := r.report.path(impl, s, c.dtype)
				switch {
				case p.Verdict == Unsupported:
				case r.refuses(s, impl, c) != nil:
					p.Refused++
				default:
					list = append(list, &item{suite: s, impl: impl, c: c, path: p, rank: len(list)})
				}
			}
		}
	}
	return list
}
