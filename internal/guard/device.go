package guard

import (
	"context"
	"fmt"

	"github.com/flashvk/flashvk/vk"
)

// A Device runs calls on views.
type Device struct {
	*vk.Device
	// Use calls a function that takes the device's time: it uploads, or submits and downloads. If
	// Use is nil, the function is just called.
	Use func(ctx context.Context, f func(ctx context.Context) error) error
	// Replay submits the recording once more, with the memory as it was before, and wants the
	// same bytes.
	Replay bool
}

// Views are the tensors of views on a device.
type Views map[*View]vk.Tensor

// Call uploads the whole memory of views, runs the commands of record, and downloads all of it,
// so that watch sees stray writes. Views that share memory share a buffer.
func (d Device) Call(ctx context.Context, name string, views []*View, record func(c *vk.Cmd, on Views) error) error {
	use := d.Use
	if use == nil {
		use = func(ctx context.Context, f func(ctx context.Context) error) error { return f(ctx) }
	}
	var uploads []upload // one for each memory
	defer func() {
		for _, u := range uploads {
			u.buffer.Close()
		}
	}()
	on, at := Views{}, map[*float64]*vk.Buffer{}
	for _, v := range views {
		b := at[&v.Data[0]]
		if b == nil {
			before := v.Encode()
			var err error
			if b, err = d.NewBuffer(v.Name, int64(len(before)+3)&^3); err != nil {
				return err
			}
			uploads, at[&v.Data[0]] = append(uploads, upload{v, b, before}), b
			if err := use(ctx, func(ctx context.Context) error { return b.Upload(ctx, 0, before) }); err != nil {
				return err
			}
		}
		on[v] = vk.Tensor{Buffer: b, DType: v.DType, Shape: v.Shape, Strides: v.Strides, Offset: v.Offset}
	}
	c, err := d.NewCmd(name)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := record(c, on); err != nil {
		return err
	}
	results := make([][]byte, len(uploads))
	err = use(ctx, func(ctx context.Context) error {
		if err := c.Submit(ctx); err != nil {
			return err
		}
		for i, u := range uploads {
			results[i] = make([]byte, len(u.before))
			if err := u.buffer.Download(ctx, 0, results[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if d.Replay {
		if err := use(ctx, func(ctx context.Context) error { return replay(ctx, c, uploads, results) }); err != nil {
			return err
		}
	}
	for i, u := range uploads {
		u.view.decodeChanged(u.before, results[i])
	}
	return nil
}

// An upload is a memory on the device.
type upload struct {
	view   *View // the first that lies in it
	buffer *vk.Buffer
	before []byte
}

// replay submits the recording once more, and compares with the results of the first time.
func replay(ctx context.Context, c *vk.Cmd, uploads []upload, first [][]byte) error {
	for _, u := range uploads {
		if err := u.buffer.Upload(ctx, 0, u.before); err != nil {
			return err
		}
	}
	if err := c.Submit(ctx); err != nil {
		return fmt.Errorf("submitted again: %w", err)
	}
	for i, u := range uploads {
		again := make([]byte, len(u.before))
		if err := u.buffer.Download(ctx, 0, again); err != nil {
			return err
		}
		for at := range again {
			if again[at] != first[i][at] {
				element := at / u.view.DType.Size()
				return fmt.Errorf("what was recorded, submitted again, gave other bits: backing element %d of %s is %g, was %g",
					element, u.view.Name, u.view.decode(again, element), u.view.decode(first[i], element))
			}
		}
	}
	return nil
}
