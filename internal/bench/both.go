package bench

import (
	"context"
	"slices"

	"github.com/flashvk/flashvk/vk"
)

// RunBoth measures the forward pass, the backward pass, and one after the other, and returns
// their results in this order. Peers measure one pass at a time. The third result of a peer has
// the sum of the two times, and the worse of the two checks.
func RunBoth(ctx context.Context, d *vk.Device, c Case, progress Progress) ([]Result, error) {
	var all []Result
	var parts [2][]Result
	passes := []Pass{Forward, Backward, Both}
	for i, pass := range passes {
		one := c
		one.Pass = pass
		if pass == Both {
			one.Peers = nil
		}
		const units = 1000
		results, err := Run(ctx, d, one, func(done, total int, what string) {
			if progress != nil {
				progress(i*units+done*units/max(total, 1), len(passes)*units, pass.String()+", "+what)
			}
		})
		if err != nil {
			return all, err
		}
		if pass == Both {
			of := &opRun{op: c.Op, pass: Both, subject: NewSubject(c.Op, Both)}
			results = append(results, sums(parts[0], parts[1], of.result(""))...)
		} else {
			parts[i] = results
		}
		all = append(all, results...)
	}
	return all, nil
}

// sums returns the results of peers of both passes as one. Blank has the fields that they share.
func sums(forward, backward []Result, blank Result) (list []Result) {
	for _, f := range forward {
		if !f.Peer {
			continue
		}
		x := blank
		x.Peer, x.Impl, x.Choice, x.Status = true, f.Impl, f.Choice, StatusOK
		i := slices.IndexFunc(backward, func(b Result) bool { return b.Peer && b.Impl == f.Impl })
		switch {
		case f.Status != StatusOK:
			x.Status, x.Reason = f.Status, f.Reason
		case i < 0:
			x.Status, x.Reason = StatusNoAnswer, "it did not measure the backward pass"
		case backward[i].Status != StatusOK:
			x.Status, x.Reason = backward[i].Status, "backward: "+backward[i].Reason
		default:
			b := backward[i]
			x.Check, x.Reason = f.Check.and(b.Check), f.Reason
			if x.Reason == "" {
				x.Reason = b.Reason
			}
			x.Timing = Timing{Warmup: f.Timing.Warmup, Iters: f.Timing.Iters, Sets: f.Timing.Sets}
			for j := range min(len(f.Timing.DeviceNS), len(b.Timing.DeviceNS)) {
				x.Timing.DeviceNS = append(x.Timing.DeviceNS, f.Timing.DeviceNS[j]+b.Timing.DeviceNS[j])
			}
		}
		list = append(list, x)
	}
	return list
}
