package trial

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

var (
	kernelsOnly  = flag.String("kernels-only", "", "kernel of TestKernelProblems; empty: all")
	kernelsFirst = flag.Int("kernels-first", 0, "number of the first problem of TestKernelProblems")
	kernelsCount = flag.Int("kernels-count", 2, "how many problems of each kernel TestKernelProblems checks")
	kernelsSoft  = flag.Bool("kernels-soft", true, "problems of TestKernelProblems are for a software driver")
	kernelsImpl  = flag.String("kernels-impl", "", "path of TestKernelProblems; empty: all")
	kernelsWork  = flag.Float64("kernels-work", 2e6, "Space.Work of TestKernelProblems")
)

// drawNumber draws problem n of a kernel, eight in a family.
func drawNumber(k *Kernel, n int, s call.Space) Problem {
	return k.Draw(rand.New(rand.NewPCG(3, uint64(n/8))), rand.New(rand.NewPCG(4, uint64(n))), s)
}

// trainingKernels are those of this file.
func trainingKernels() (list []Kernel) {
	for _, k := range All() {
		if *kernelsOnly == "" || k.Name == *kernelsOnly {
			list = append(list, k)
		}
	}
	return list
}

// TestKernelProblems checks problems on the device.
func TestKernelProblems(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t, vktest.NoValidation)
	r, err := newRunner(d)
	require.NoError(t, err)
	defer r.close()
	s := call.Space{Soft: *kernelsSoft, Work: *kernelsWork}
	if *kernelsImpl != "" {
		s.Impls = []string{*kernelsImpl}
	}
	for _, k := range trainingKernels() {
		refused := 0
		for n := *kernelsFirst; n < *kernelsFirst+*kernelsCount; n++ {
			p := drawNumber(&k, n, s)
			if p == nil || p.Supports(d.Caps()) != nil {
				refused++
				continue
			}
			text, _ := json.Marshal(p)
			err := p.Check(context.Background(), r.problem(nil))
			if err != nil && !errors.Is(err, vk.ErrUnsupported) {
				t.Errorf("%s %d: %v\n%v\n%s", k.Name, n, err, p, text)
			}
		}
		t.Logf("%s: %d of %d refused", k.Name, refused, *kernelsCount)
	}
}

// TestKernelJSON wants problems to be the same after JSON, and most of them to be supported on a
// device like an H200.
func TestKernelJSON(t *testing.T) {
	vktest.Sequential(t)
	for _, soft := range []bool{false, true} {
		caps := call.TypicalCaps(soft)
		for _, k := range trainingKernels() {
			refused := 0
			const count = 1000
			for n := range count {
				p := drawNumber(&k, n, call.Space{Soft: soft, Work: 1e7})
				text, err := json.Marshal(p)
				require.NoError(t, err)
				again := k.New()
				require.NoError(t, json.Unmarshal(text, again))
				require.Equal(t, p, again)
				require.NotEmpty(t, p.String())
				if err := p.Supports(caps); err != nil {
					require.ErrorIs(t, err, vk.ErrUnsupported, "%s", text)
					refused++
				}
				for _, q := range p.Smaller() {
					require.NotEqual(t, p, q)
				}
			}
			t.Logf("%s: soft=%v: %d of %d refused", k.Name, soft, refused, count)
			if !soft {
				require.Less(t, refused, count/4, k.Name)
			}
		}
	}
}

// TestShrinks says that steps to a smaller problem come to an end.
func TestShrinks(t *testing.T) {
	vktest.Sequential(t)
	for _, k := range trainingKernels() {
		for n := range 3 {
			p := drawNumber(&k, 8*n, call.Space{Work: 1e7})
			list := p.Smaller()
			for steps := 0; len(list) > 0; steps++ {
				require.Less(t, steps, 3000, "%v", p)
				p = list[min(n, len(list)-1)]
				list = p.Smaller()
			}
		}
	}
}
