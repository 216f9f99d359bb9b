// Package cover chooses a few cases that stand for all, where all take too long.
package cover

import (
	"fmt"
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

func choose[C any](cases []C, kernel, traits func(C) []any, pairs bool) []C {
	kinds := make(map[string][]int) // cases by kernel
	var names []string
	wanted := make(map[string][]string)
	for n, c := range cases {
		values := kernel(c)
		name := fmt.Sprintf("%#v", values)
		if kinds[name] == nil {
			names = append(names, name)
			for i, x := range values {
				for j, y := range values[:i+1] {
					if !pairs && j < i {
						continue
					}
					wanted[name] = append(wanted[name], fmt.Sprintf("%d=%#v %d=%#v", i, x, j, y))
				}
			}
		}
		for i, x := range traits(c) {
			wanted[name] = append(wanted[name], fmt.Sprintf("trait %d=%#v", i, x))
		}
		kinds[name] = append(kinds[name], n)
	}
	covered := make(map[string]bool)
	var chosen []int
	for {
		best, most := "", 0
		for _, name := range names {
			news := make(map[string]bool)
			for _, w := range wanted[name] {
				if !covered[w] {
					news[w] = true
				}
			}
			if len(news) > most {
				best, most = name, len(news)
			}
		}
		if most == 0 {
			break
		}
		for _, w := range wanted[best] {
			covered[w] = true
		}
		chosen = append(chosen, kinds[best]...)
	}
	slices.Sort(chosen)
	some := make([]C, len(chosen))
	for i, n := range chosen {
		some[i] = cases[n]
	}
	return some
}
