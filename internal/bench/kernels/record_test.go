package kernels_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// recorded are calls of a kernel with flags, and the most allocations that recording one again takes on
// the path that lavapipe chooses: a tenth more than at the time of writing.
var recorded = []struct {
	call        string
	pass        bench.Pass
	allocations float64
}{
	{call: "attention --seqlen=16", allocations: 12},
	{call: "attention --seqlen=16", pass: bench.Backward, allocations: 37},
	{call: "decode --part=decode", allocations: 29},
	{call: "decode --part=step", allocations: 39},
	{call: "norm", allocations: 10},
	{call: "norm", pass: bench.Backward, allocations: 16},
	{call: "gemm", allocations: 17},
	{call: "mlp", allocations: 71},
	{call: "mlp", pass: bench.Backward, allocations: 188},
	{call: "grouped", allocations: 74},
	{call: "gmm", allocations: 22},
	{call: "mixture", allocations: 74},
	{call: "optim", allocations: 33},
}

// TestRecordAgain wants a call that is recorded again to allocate little. Allocations stand for the
// time that a call takes the host beside the driver, which a test cannot measure; bench overhead does.
func TestRecordAgain(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	if d.Caps().Type != vk.CPU {
		t.Skip("a GPU has other choices than the CPU device of this test")
	}
	for _, x := range recorded {
		words := strings.Fields(x.call)
		op := opOf(t, words[0], words[1:])
		t.Cleanup(op.Close)
		list := bound(t, d, op, "auto", x.pass)
		require.Len(t, list, 1)
		require.NoError(t, d.Run(t.Context(), "first", list[0]))
		c, err := d.NewCmd("again")
		require.NoError(t, err)
		t.Cleanup(c.Close)
		n := testing.AllocsPerRun(20, func() { err = list[0](c) })
		require.NoError(t, err)
		require.LessOrEqual(t, n, x.allocations, "of %s %v", x.call, x.pass)
	}
}
