package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench/kernels"
)

// FuzzSizes says that no sizes on a command line make the program panic, or take its time before
// it says what is wrong.
func FuzzSizes(f *testing.F) {
	for i, args := range []string{
		"--batch 1 --seqlen 1..9223372036854775807x2 --headdim 8", "--keys 5..40 --batch 3", "--m 4..16x2 --n 0 --k -1 --dtype half", "--tokens 1,2,2",
		"--heads 3 --hidden 99999999999999999999", "--tokens 1..3+1 --components 4", "--rows 9223372036854775807 --cols 2", "--rows 1..1000000+1", "--tensors 2147483647 --elements 2147483647",
		"--group 1x2x3,4x5x6 --trans nt", "--batch=4 --varlen --window 1,2 --dropout 0.5 --seed 1", "--suite length --small",
	} {
		f.Add(uint8(i), args)
	}
	all := kernels.All()
	f.Fuzz(func(t *testing.T, kernel uint8, args string) {
		b := &benchKernel{kernelProblem: newKernelProblem(all[int(kernel)%len(all)])}
		set := pflag.NewFlagSet("test", pflag.ContinueOnError)
		set.Usage = func() {}
		b.add(set)
		if err := set.Parse(strings.Fields(args)); err != nil {
			return
		}
		ops, _, err := b.ops(true)
		if err != nil {
			return
		}
		if len(ops) == 0 || len(ops) > maxProblems {
			t.Errorf("%d problems", len(ops))
		}
		for _, op := range ops[:1] {
			if op.Describe() == "" || len(op.Tensors()) == 0 {
				t.Errorf("%T of nothing", op)
			}
		}
	})
}
