package chain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/pipelines/gemm/chain"
)

// TestKeep parses the names of what there is to keep, where a kernel has them.
func TestKeep(t *testing.T) {
	all := []chain.Keep{chain.KeepNothing, chain.KeepPre, chain.KeepHidden}
	for _, k := range all {
		got, err := chain.ParseKeep(k.String(), all)
		require.NoError(t, err)
		require.Equal(t, k, got)
		require.NoError(t, k.Check("mlp", all))
	}
	_, err := chain.ParseKeep("hidden", all[:2])
	require.EqualError(t, err, `keep "hidden" is not one of nothing, pre`)
	require.EqualError(t, chain.KeepHidden.Check("grouped", all[:2]), "grouped: keep=hidden is not one of nothing, pre")
	require.EqualError(t, chain.Keep(9).Check("mlp", all), "mlp: keep=Keep(9) is not one of nothing, pre, hidden")
}
