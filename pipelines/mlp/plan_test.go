package mlp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
)

// TestPadded wants hidden units in the workspace padded to whole lines, in both passes, where the
// products pack their weights, and not elsewhere.
func TestPadded(t *testing.T) {
	caps := chipstest.H200()
	for _, x := range []struct {
		tokens, in, hidden, out int
		keep                    Keep
		want                    int
	}{
		{11000, 512, 1365, 512, KeepNothing, 1408},
		{11000, 512, 1408, 512, KeepNothing, 1408},
		{11000, 512, 1365, 512, KeepPre, 1365},
		{11000, 512, 1365, 512, KeepHidden, 1365},
		{100, 512, 1365, 512, KeepNothing, 1365}, // too few rows for packing
		{25400, 40, 101, 40, KeepNothing, 104},   // the sizes of TestMany
	} {
		p := Problem{Tokens: x.tokens, In: x.in, Hidden: x.hidden, Out: x.out, DType: dtype.Float16, Grad: dtype.Some(dtype.Float16), Keep: x.keep}
		forward, err := newForwardPlan(caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, x.want, forward.parts[0].units, "%v, keep=%v", p, x.keep)
		backward, err := newBackwardPlan(caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, x.want, backward.parts[0].units, "backward of %v, keep=%v", p, x.keep)
	}
	kept := Problem{Tokens: 11000, In: 512, Hidden: 1365, Out: 512, DType: dtype.Float16, Grad: dtype.Some(dtype.Float16), Keep: KeepHidden}
	kept.Units = KeptUnits(caps, kept, Options{})
	require.Equal(t, 1408, kept.Units)
	backward, err := newBackwardPlan(caps, kept, Options{})
	require.NoError(t, err)
	require.Equal(t, 1408, backward.parts[0].units)
	plan, err := newForwardPlan(caps, Problem{Tokens: 11000, In: 512, Hidden: 1365, Out: 512, DType: dtype.Float32, Grad: dtype.Some(dtype.Float32)}, Options{})
	require.NoError(t, err)
	require.Equal(t, 1365, plan.parts[0].units) // float32 is not packed
}
