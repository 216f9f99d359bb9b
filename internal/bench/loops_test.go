package bench

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// TestLoops says that each loop computes what it says, that its check would notice if it did not,
// that its calls take as long as is asked for, and that the operations of the shader's loops are
// counted.
func TestLoops(t *testing.T) {
	for _, c := range []struct {
		kernel, typ  string
		params, spec any
		bindings     []string
	}{
		{"micro_matrix", "f16", matrixParams{}, matrixSpec{}, []string{"A", "B", "C"}},
		{"micro_matrix", "bf16", matrixParams{}, matrixSpec{}, []string{"A", "B", "C"}},
		{"micro_matrix", "int8", matrixParams{}, matrixSpec{}, []string{"A", "B", "C"}},
		{"micro_fma", "", fmaParams{}, workgroupSpec{}, []string{"Y"}},
		{"micro_copy", "", copyParams{}, workgroupSpec{}, []string{"Src", "Dst"}},
	} {
		module, err := shaders.Get(c.kernel, c.typ)
		require.NoError(t, err)
		layouttest.Check(t, module, c.params, c.spec, c.bindings...)
	}
	d := vktest.Open(t)
	ctx := context.Background()
	for _, name := range loopNames {
		t.Run(name, func(t *testing.T) {
			l, err := newLoop(d, name)
			if name == "matrix f16" {
				vktest.Require(t, "coopmat", err)
			} else if strings.HasPrefix(name, "matrix") && err != nil {
				require.ErrorIs(t, err, vk.ErrUnsupported)
				t.Skip(err)
			}
			require.NoError(t, err)
			defer l.close()
			require.NoError(t, l.check(ctx))
			require.Len(t, l.modules, 1)

			right := l.call
			l.call = func(c *vk.Cmd, iters uint32) { right(c, iters+1) }
			if name == copyLoop {
				l.call = func(*vk.Cmd, uint32) {} // records nothing: the last copy is still there
				require.NoError(t, l.free[1].Buffer.Upload(ctx, 4, []byte{1}))
			}
			require.ErrorContains(t, l.check(ctx), "element ")
			l.call = right

			require.NoError(t, l.calibrate(ctx, 4*time.Millisecond))
			require.Equal(t, l.fixed, l.iters == 1)
			if name == "matrix f16" {
				s, _ := chips.MatrixShape(d.Caps(), dtype.Float16)
				subgroups := float64(4*l.free[2].NumElements()) / float64(4*tilesA*tilesB*s.M*s.N)
				require.Equal(t, subgroups*tilesA*tilesB*2*float64(s.M*s.N*s.K), l.perIter)
			}
		})
	}
}
