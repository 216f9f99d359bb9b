// Package steps is an order of recording for kernels of several calls. Of each call, a step
// needs what the one before writes; steps of different calls that need nothing of each other
// are recorded next to each other, so that a device has work while the last workgroups of a
// kernel finish. The barriers follow from what they read and write (vk.Cmd).
//
//	a := steps.List{product, sums}         a call: product, then sums
//	b := steps.List{copies, product}
//	c := steps.List{product}
//
//	a ++ Together(b, c):  a product | a sums | b copies, c product | b product
//	Together(a, b) ++ c:  a product, b copies | a sums, b product | c product
//
// where ++ is slices.Concat, and | stands where a barrier will.
package steps

import "github.com/flashvk/flashvk/vk"

// A List is what calls record, in order.
type List []func(c *vk.Cmd) error

// Record records l into c and returns the first error.
func (l List) Record(c *vk.Cmd) error {
	for _, step := range l {
		if err := step(c); err != nil {
			return err
		}
	}
	return nil
}

// Together returns lists side by side, all from the first step on. None may read or write
// what another writes; parts of one buffer that they write are slices (vk.Tensor.Narrow).
func Together(lists ...List) List {
	var all List
	for _, l := range lists {
		for i, step := range l {
			if i == len(all) {
				all = append(all, step)
				continue
			}
			before := all[i]
			all[i] = func(c *vk.Cmd) error {
				if err := before(c); err != nil {
					return err
				}
				return step(c)
			}
		}
	}
	return all
}
