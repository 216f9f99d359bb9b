package attntest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention/problem"
)

// A device has memory of bytes in the storage format, as a GPU does. It is the
// shape of every adapter for one: upload five backing slices whole, run,
// download five backing slices whole.
type device struct{ kernel Forwarder }

func (d *device) Forward(o, lse, q, k, v *Tensor, p problem.Problem) error {
	host := []*Tensor{o, lse, q, k, v}
	memory := make([][]byte, len(host))
	onDevice := make([]*Tensor, len(host))
	for i, t := range host {
		if t == nil {
			continue
		}
		memory[i] = t.Encode()
		view := *t
		view.Data = make([]float64, len(t.Data))
		view.Decode(memory[i])
		onDevice[i] = &view
	}
	if err := d.kernel.Forward(onDevice[0], onDevice[1], onDevice[2], onDevice[3], onDevice[4], p); err != nil {
		return err
	}
	for i, t := range host {
		if t != nil {
			t.Decode(onDevice[i].Encode())
		}
	}
	return nil
}

// TestDevice says that a kernel behind a device passes as it does in Go, and
// that its stray writes are seen through the device's memory.
func TestDevice(t *testing.T) {
	s := NewSuite(Short, Reference, TwicePlain).Where(func(c *Case) bool { return c.Problem.FLOPs() < 2e6 })
	s.TestForward(t, &device{&kernel{}})
	for _, mistake := range []string{"Q scaled in place", "one row past the end", "stale row", "keys' tail not masked", "O written with Q's strides"} {
		caught := false
		for _, c := range s.Cases {
			if _, err := s.Check(c, &device{&kernel{mistake: mistake}}); err != nil {
				caught = true
				break
			}
		}
		require.True(t, caught, mistake)
	}
}
