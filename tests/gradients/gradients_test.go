package gradients

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/tests/conformance"
	"github.com/flashvk/flashvk/vk"
)

// values are those of tensors, by name.
type values map[string][]float64

// tensors are those of a device.
type tensors func(name string) vk.Tensor

// A pass is a call of a backward kernel.
type pass struct {
	name     string
	function string           // as package conformance lists it
	inputs   map[string][]int // shapes; all random
	outputs  map[string][]int // of the forward pass
	by       []string         // the inputs x for which there is a gradient dx
	// loss is that of the float64 reference.
	loss func(x values) float64
	// record records both passes.
	record func(c *vk.Cmd, on tensors) error
	// long says that a software driver takes seconds to compile the kernels.
	long bool
	// unsupported is why the device has no such kernel.
	unsupported error
}

// step is the step of the differences. Their error is about step², and 1e-16 divided by step.
// Inputs are multiples of grid, so that a reference that rounds the sum of two inputs to float32
// changes nothing.
const step, grid = 0x1p-14, 0x1p-12

// allowed is the largest error of gradients, relative to the largest gradient: a hundred roundoffs
// of float32, and the error of a device's exp.
const allowed = 2e-5

// TestGradients compares every element.
func TestGradients(t *testing.T) {
	d := vktest.Open(t)
	for _, p := range passes(d.Caps()) {
		t.Run(p.name, func(t *testing.T) {
			if p.unsupported != nil {
				require.ErrorIs(t, p.unsupported, vk.ErrUnsupported)
				t.Skip(p.unsupported)
			}
			if p.long && !vktest.Thorough(d) {
				t.Skip("lavapipe compiles its kernels for long; others have the formula")
			}
			x := p.draw()
			got := p.run(t, d, x)
			for _, name := range p.by {
				want := p.differences(x, name)
				most := 0.0
				for _, w := range want {
					most = max(most, math.Abs(w))
				}
				require.Greater(t, most, 1e-3, "the loss does not depend on %s", name)
				for i, w := range want {
					require.InDelta(t, w, got[name][i], allowed*most, "d%s[%d]", name, i)
				}
			}
		})
	}
}

// TestPasses wants passes to have each backward function of package conformance.
func TestPasses(t *testing.T) {
	var want, have []string
	for _, e := range conformance.Table() {
		for _, f := range strings.Fields(e.Functions) {
			if _, name, _ := strings.Cut(f, "."); strings.HasPrefix(name, "Backward") {
				want = append(want, f)
			}
		}
	}
	for _, p := range passes(&vk.Caps{}) {
		have = append(have, strings.Fields(p.function)...)
	}
	slices.Sort(want)
	slices.Sort(have)
	require.Equal(t, slices.Compact(want), slices.Compact(have))
}

// draw returns inputs.
func (p *pass) draw() values {
	rng, x := rand.New(rand.NewPCG(3, 7)), values{}
	for _, name := range sorted(p.inputs) {
		x[name] = make([]float64, count(p.inputs[name]))
		for i := range x[name] {
			x[name][i] = grid * math.Round(rng.NormFloat64()/grid)
		}
	}
	return x
}

// differences returns the gradient by an input.
func (p *pass) differences(x values, name string) []float64 {
	list := make([]float64, len(x[name]))
	for i, at := range x[name] {
		x[name][i] = at + step
		up := p.loss(x)
		x[name][i] = at - step
		list[i] = (up - p.loss(x)) / (2 * step)
		x[name][i] = at
	}
	return list
}

// run returns the gradients that the kernels write.
func (p *pass) run(t *testing.T, d *vk.Device, x values) values {
	t.Helper()
	var all []*guard.View
	at := map[string]*guard.View{}
	add := func(name string, shape []int, data []float64) {
		v := &guard.View{Name: name, Shape: shape, Strides: make([]int, len(shape)), Data: data}
		stride := 1
		for a := len(shape) - 1; a >= 0; a-- {
			v.Strides[a] = stride
			stride *= shape[a]
		}
		all, at[name] = append(all, v), v
	}
	for name, shape := range p.inputs {
		add(name, shape, slices.Clone(x[name]))
	}
	for name, shape := range p.outputs {
		add(name, shape, make([]float64, count(shape)))
	}
	for _, name := range p.by {
		add("d"+name, p.inputs[name], make([]float64, len(x[name])))
	}
	device := guard.Device{Device: d}
	require.NoError(t, device.Call(context.Background(), p.name, all, func(c *vk.Cmd, on guard.Views) error {
		return p.record(c, func(name string) vk.Tensor { return on[at[name]] })
	}))
	got := values{}
	for _, name := range p.by {
		got[name] = at["d"+name].Data
	}
	return got
}

// count returns the product of a shape.
func count(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// dot returns the sum of products.
func dot(x, y []float64) float64 {
	sum := 0.0
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}

func sorted(m map[string][]int) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
