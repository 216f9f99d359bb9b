package vktest

import (
	"fmt"
	"os"
	"slices"

	"github.com/flashvk/flashvk/vk"
)

// allEnv, if it is not empty, has tests run on a CPU device what they run on a GPU.
const allEnv = "FLASHVK_ALL"

// Thorough reports whether a test runs all that it has: on every GPU, and on a CPU device
// if FLASHVK_ALL is set, as make test-all does. Lavapipe compiles a kernel on matrices for
// seconds; make test runs there what stands for the rest.
func Thorough(d *vk.Device) bool { return d.Caps().Type != vk.CPU || os.Getenv(allEnv) != "" }

// Cover returns cases that stand for all: whatever two values of properties occur
// together in some case occur together in one of these, and of the cases that have all
// properties in common, which is to say a kernel, it returns all or none. Properties
// returns equally many values for each case.
func Cover[C any](cases []C, properties func(C) []any) []C {
	kinds := make(map[string][]int) // cases by all of their properties
	var names []string
	pairs := make(map[string][]string)
	for n, c := range cases {
		values := properties(c)
		name := fmt.Sprintf("%#v", values)
		if kinds[name] == nil {
			names = append(names, name)
			for i, x := range values {
				for j, y := range values[:i+1] {
					pairs[name] = append(pairs[name], fmt.Sprintf("%d=%#v %d=%#v", i, x, j, y))
				}
			}
		}
		kinds[name] = append(kinds[name], n)
	}
	covered := make(map[string]bool)
	var chosen []int
	for {
		best, most := "", 0
		for _, name := range names {
			news := 0
			for _, p := range pairs[name] {
				if !covered[p] {
					news++
				}
			}
			if news > most {
				best, most = name, news
			}
		}
		if most == 0 {
			break
		}
		for _, p := range pairs[best] {
			covered[p] = true
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
