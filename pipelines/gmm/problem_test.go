package gmm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

func TestValidate(t *testing.T) {
	require.NoError(t, Problem{Tokens: 1, Components: 1}.Validate())
	require.EqualError(t, Problem{Components: 1}.Validate(), "gmm: tokens=0 is not positive")
	require.EqualError(t, Problem{Tokens: 1}.Validate(), "gmm: components=0 is not positive")
	require.EqualError(t, Problem{Tokens: 1 << 20, Components: 1 << 20}.Validate(), "gmm: tokens=1048576 by components=1048576 are more than 1431655765")
	require.EqualError(t, Problem{Tokens: 1, Components: 1, DType: dtype.Bool}.Validate(), "gmm: dtype=bool is not one of float32, float16, bfloat16")
	require.EqualError(t, Problem{Tokens: 1, Components: 1, Grad: dtype.Some(dtype.Int32)}.Validate(), "gmm: grad=int32 is not one of float32, float16, bfloat16")
}
