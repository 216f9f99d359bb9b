package attntest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/guard"
)

// A device has memory of bytes in the storage format, as a GPU does. It works like every adapter
// for a GPU: it uploads all backing slices, runs, and downloads all of them.
type device struct{ kernel Forwarder }

func (d *device) Forward(o, lse *guard.View, in Inputs, p attention.Problem) error {
	var host, memory []*guard.View
	upload := func(t *guard.View) *guard.View {
		if t == nil {
			return nil
		}
		view := *t
		view.Data = make([]float64, len(t.Data))
		view.Decode(t.Encode())
		host, memory = append(host, t), append(memory, &view)
		return &view
	}
	if err := d.kernel.Forward(upload(o), upload(lse), in.Map(upload), p); err != nil {
		return err
	}
	for i, t := range host {
		t.Decode(memory[i].Encode())
	}
	return nil
}

// TestDevice says that a kernel on a device passes as it does in Go, and that the suite sees its
// stray writes in the device's memory.
func TestDevice(t *testing.T) {
	sequential(t)
	s := NewSuite(Short, Reference, TwicePlain).Where(func(c *Case) bool { return c.FLOPs() < quick(2e6) })
	TestForward(t, s, &device{&kernel{}})
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
