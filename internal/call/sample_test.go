package call

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/vk/kit"
)

// TestSampleSure wants nearly all rows of drawn calls to be compared, the others being those that roundings decide.
func TestSampleSure(t *testing.T) {
	rows, sure := 0, 0
	for i := range uint64(80) {
		s := drawn(drawSample)(rand.New(rand.NewPCG(1, i/4)), rand.New(rand.NewPCG(2, i)), Space{Work: 1e6}).(*Sample)
		rows, sure = rows+s.Rows, sure+len(s.Want(Inputs(s), kit.Forward)["tokens"].Want)
	}
	require.Greater(t, float64(sure), 0.97*float64(rows))
}
