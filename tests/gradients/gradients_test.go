package gradients

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/tests/conformance"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

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
	for _, k := range call.All() {
		each(t, &k, func(t *testing.T, c call.Call) {
			if _, err := c.Host().Choose(d.Caps(), kit.Backward); err != nil {
				require.ErrorIs(t, err, vk.ErrUnsupported)
				t.Skip(err)
			}
			a, ok := c.(*call.Attention)
			impl := call.Field(c, "impl")
			matrices := impl.IsValid() && strings.HasPrefix(fmt.Sprint(impl.Interface()), engine.CoopMat.String())
			if matrices && !(ok && a.Plain()) && !vktest.Thorough(d) {
				t.Skip("lavapipe compiles its kernels for long; others have the formula")
			}
			compare(t, d, c)
		})
	}
}

// each calls f with the calls of a kernel, on every path.
func each(t *testing.T, k *call.Kernel, f func(t *testing.T, c call.Call)) {
	for _, e := range k.Gradients {
		e.Problem = fmt.Sprintf("%s:{%s}", k.Name, e.Problem)
		for _, path := range e.Paths {
			_, c, err := conformance.On(&e, dtype.Float32, path, 0)
			require.NoError(t, err, e.Problem)
			t.Run(fmt.Sprintf("%s/%s/%s", k.Name, e.Name, path), func(t *testing.T) { f(t, c) })
		}
	}
}

// TestPasses wants backward functions of package conformance to have calls here, and no others.
func TestPasses(t *testing.T) {
	var want, have []string
	for _, e := range conformance.Table() {
		for _, f := range strings.Fields(e.Functions) {
			if _, name, _ := strings.Cut(f, "."); strings.HasPrefix(name, "Backward") {
				want = append(want, f)
			}
		}
	}
	for _, k := range call.All() {
		for _, e := range k.Gradients {
			have = append(have, strings.Fields(e.Functions)...)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	require.Equal(t, slices.Compact(want), slices.Compact(have))
}

// compare compares the gradients by all inputs.
func compare(t *testing.T, d *vk.Device, c call.Call) {
	rng, x, given, on := rand.New(rand.NewPCG(3, 7)), call.Values{}, call.Inputs(c), map[string]vk.Tensor{}
	for _, of := range c.Tensors() {
		if of.Off {
			continue
		}
		if of.DType == dtype.Int32 {
			x[of.Name], on[of.Name] = given[of.Name], vktest.Tensor(t, d, dtype.Int32, of.Shape...)
			require.NoError(t, on[of.Name].UploadInts(t.Context(), of.Ints))
			continue
		}
		var data []float32
		if of.Role == call.Input || of.Role == call.Upstream {
			x[of.Name] = make([]float64, call.Product(of.Shape))
			for i := range x[of.Name] {
				x[of.Name][i] = grid * math.Round(rng.NormFloat64()/grid)
				data = append(data, float32(x[of.Name][i]))
			}
		}
		on[of.Name] = vktest.Values(t, d, dtype.Float32, data, of.Shape...)
	}
	require.NoError(t, d.Run(t.Context(), "gradients", func(cmd *vk.Cmd) error {
		if err := c.Host().Bind(on, nil, kit.Forward)(cmd); err != nil {
			return err
		}
		return c.Host().Bind(on, nil, kit.Backward)(cmd)
	}))
	for _, of := range c.Tensors() {
		name := strings.TrimPrefix(of.Name, "d")
		if of.Role != call.Gradient || of.Off {
			continue
		}
		require.NotNil(t, x[name], of.Name)
		got := make([]float32, call.Product(of.Shape))
		require.NoError(t, on[of.Name].Download(t.Context(), got))
		want, most := differences(c, x, name), 0.0
		for _, w := range want {
			most = max(most, math.Abs(w))
		}
		require.Greater(t, most, 1e-3, "the loss does not depend on %s", name)
		for i, w := range want {
			require.InDelta(t, w, float64(got[i]), allowed*most, "d%s[%d]", name, i)
		}
	}
}

// differences returns the gradient by an input.
func differences(c call.Call, x call.Values, name string) []float64 {
	list := make([]float64, len(x[name]))
	for i, at := range x[name] {
		x[name][i] = at + step
		up := loss(c, x)
		x[name][i] = at - step
		list[i] = (up - loss(c, x)) / (2 * step)
		x[name][i] = at
	}
	return list
}

// loss is the sum of the outputs' products with their gradients.
func loss(c call.Call, x call.Values) (sum float64) {
	out := c.Want(x, kit.Forward)
	for _, of := range c.Tensors() {
		if w, _ := out.Of(of.Name); of.Role == call.Output && !of.Off {
			for i, dy := range x["d"+of.Name] {
				sum += w.Want[i] * dy
			}
		}
	}
	return sum
}
