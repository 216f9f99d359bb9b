package bench

import (
	"context"
	"errors"
	"hash/maphash"

	"github.com/flashvk/flashvk/vk"
)

// submit records commands and runs them.
func submit(ctx context.Context, d *vk.Device, name string, record func(c *vk.Cmd) error) error {
	c, err := d.NewCmd(name)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := record(c); err != nil {
		return err
	}
	return c.Submit(ctx)
}

func tensorBytes(t vk.Tensor) int64 { return int64(t.NumElements()) * int64(t.DType.Size()) }

// poison fills tensors with NaN, which is all bits set in every format. A last half word is left
// as it was.
func poison(ctx context.Context, d *vk.Device, tensors []vk.Tensor) error {
	return submit(ctx, d, "bench clear", func(c *vk.Cmd) error {
		for _, t := range tensors {
			if bytes := tensorBytes(t) &^ 3; bytes > 0 {
				c.Fill(t.Buffer, 0, bytes, 0xffffffff)
			}
		}
		return nil
	})
}

// copyFirst copies the tensors of the first set to the other sets.
func copyFirst(ctx context.Context, d *vk.Device, sets [][]vk.Tensor) error {
	if len(sets) == 1 {
		return nil
	}
	return submit(ctx, d, "bench sets", func(c *vk.Cmd) error {
		for _, s := range sets[1:] {
			for i, to := range s {
				c.Copy(to.Buffer, 0, sets[0][i].Buffer, 0, tensorBytes(to))
			}
		}
		return nil
	})
}

// A hasher compares the content of tensors by hashes.
type hasher struct {
	seed maphash.Seed
	raw  []byte
}

func newHasher() hasher { return hasher{seed: maphash.MakeSeed()} }

// sum returns a hash of contiguous tensors.
func (h *hasher) sum(ctx context.Context, tensors []vk.Tensor) (uint64, error) {
	var sum maphash.Hash
	sum.SetSeed(h.seed)
	for _, t := range tensors {
		n := tensorBytes(t)
		if int64(len(h.raw)) < n {
			h.raw = make([]byte, n)
		}
		if err := t.Buffer.Download(ctx, 0, h.raw[:n]); err != nil {
			return 0, err
		}
		sum.Write(h.raw[:n])
	}
	return sum.Sum64(), nil
}

// verifier returns Target.Verify for outputs that are right now in the first set.
func verifier(ctx context.Context, fingerprint func(ctx context.Context, set int) (uint64, error)) (func(context.Context, int) error, error) {
	right, err := fingerprint(ctx, 0)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, set int) error {
		got, err := fingerprint(ctx, set)
		if err == nil && got != right {
			err = errors.New("the outputs of the timed calls differ from those that were checked")
		}
		return err
	}, nil
}
