package trial

import (
	"context"
	"math/rand/v2"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk"
)

// kernelData is the data of the kernels that package call does not describe yet.
type kernelData struct{ call.Data }

// check runs a call on tensors.
func (d *kernelData) check(ctx context.Context, r *Runner, name string, tensors []guard.Tensor, record guard.Record) error {
	for i := range tensors {
		if tensors[i].Place == nil {
			tensors[i].Place = d.Place(i, tensors[i].Shape)
		}
	}
	return r.Check(ctx, guard.Case{Name: name, Tensors: tensors}, record)
}

// Check runs a case, with poison before each call.
func (r *Runner) Check(ctx context.Context, c guard.Case, record guard.Record) error {
	_, err := c.CheckContext(ctx, r.Guard(), func(c *vk.Cmd, t map[string]vk.Tensor) error {
		return r.Record(c, func(c *vk.Cmd) error { return record(c, t) })
	})
	return err
}

// smaller calls f with each step to simpler data.
func (d kernelData) smaller(f func(d kernelData)) { d.Smaller(func(x call.Data) { f(kernelData{x}) }) }

// halves calls f for every size above one: with half of it, and if it is even with one less.
func halves(sizes []*int, f func()) {
	for _, half := range []bool{true, false} {
		for _, n := range sizes {
			old := *n
			if half && old > 1 {
				*n = (old + 1) / 2
			} else if !half && old > 1 {
				*n = old - 1
			} else {
				continue
			}
			f()
			*n = old
		}
	}
}

// sizeOf draws a size for a Space.
func sizeOf(rng *rand.Rand, s call.Space, most int) int {
	if s.Soft {
		most = min(most, 70)
	}
	return call.Size(rng, most)
}
