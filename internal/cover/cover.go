// Package cover chooses a few cases that stand for all, where all take too long.
package cover

import (
	"fmt"
	"maps"
	"slices"
)

// Pairs returns cases that stand for all. Kernel returns the values that decide which kernel a
// case takes, equally many for each case. Any two of these values that occur together in some
// case occur together in a case that is returned. Of the cases of one kernel, all are returned or
// none. Each value of traits occurs in a returned case, too.
func Pairs[C any](cases []C, kernel, traits func(C) []any) []C {
	return choose(cases, kernel, traits, true)
}

// Each returns fewer cases: each value of kernel, at each place, occurs in one of them. Of the
// cases of one kernel, all are returned or none.
func Each[C any](cases []C, kernel func(C) []any) []C {
	return choose(cases, kernel, func(C) []any { return nil }, false)
}

func choose[C any](cases []C, kernel, traits func(C) []any, pairs bool) (some []C) {
	type kind struct {
		cases []int
		wants map[string]bool
	}
	kinds := map[string]*kind{}
	var list []*kind
	for n, c := range cases {
		values := kernel(c)
		name := fmt.Sprintf("%#v", values)
		k := kinds[name]
		if k == nil {
			k = &kind{wants: map[string]bool{}}
			kinds[name], list = k, append(list, k)
		}
		for i, x := range values {
			for j, y := range values[:i+1] {
				if pairs || j == i {
					k.wants[fmt.Sprintf("%d=%#v %d=%#v", i, x, j, y)] = true
				}
			}
		}
		for i, x := range traits(c) {
			k.wants[fmt.Sprintf("trait %d=%#v", i, x)] = true
		}
		k.cases = append(k.cases, n)
	}
	var chosen []int
	for len(list) > 0 {
		best := slices.MaxFunc(list, func(a, b *kind) int { return len(a.wants) - len(b.wants) })
		if len(best.wants) == 0 {
			break
		}
		chosen = append(chosen, best.cases...)
		covered := maps.Clone(best.wants)
		for _, k := range list {
			maps.DeleteFunc(k.wants, func(want string, _ bool) bool { return covered[want] })
		}
	}
	slices.Sort(chosen)
	for _, n := range chosen {
		some = append(some, cases[n])
	}
	return some
}
