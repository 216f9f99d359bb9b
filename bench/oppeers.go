package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/bench/safetensors"
)

// peers asks the peers of c for the same problem on the same inputs, as those of
// attention are asked.
func (r *opRun) peers(ctx context.Context, c OpCase, step func(what string)) ([]Result, error) {
	if len(c.Peers) == 0 {
		return nil, nil
	}
	request := newMeasurement(r.op.Name(), c.Pass, c.Protocol, r.subject.bytes)
	request.Params = map[string]any{}
	for _, k := range r.op.Keys() {
		request.Params[k.Name] = k.Value
	}
	ask := peerCall{list: c.Peers, limit: c.PeerTime, request: request, blank: r.result(""), check: r.checkOutput}
	write := func(path string) error {
		if err := r.restore(ctx); err != nil { // an updated tensor holds what the timed calls made of it
			return err
		}
		var list []namedTensor
		for _, t := range r.op.Tensors() {
			if t.Read(c.Pass) {
				list = append(list, namedTensor{t.Name, r.sets[0][t.Name]})
			}
		}
		return writeTensors(ctx, path, list)
	}
	return ask.run(ctx, write, r.close, step)
}

// checkOutput compares those outputs that a peer wrote with what they should be.
func (r *opRun) checkOutput(path string) (Check, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return Check{}, err
	}
	defer f.Close()
	got := map[string][]float32{}
	var names []string
	for _, t := range r.op.Tensors() {
		if !t.Written(r.pass) {
			continue
		}
		names = append(names, t.Name)
		if slices.ContainsFunc(f.Tensors(), func(x safetensors.Tensor) bool { return x.Name == t.Name }) {
			if got[t.Name], err = readOutput(path, t.Name, t.DType, t.Shape); err != nil {
				return Check{}, err
			}
		}
	}
	if len(got) == 0 {
		return Check{}, fmt.Errorf("its output has none of the tensors %q", names)
	}
	return compareAll(got, r.want)
}
