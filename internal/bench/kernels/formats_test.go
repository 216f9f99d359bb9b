package kernels_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
)

// TestUnsaidFormats says that without a flag for a format, the format is that of the zero value in
// the package.
func TestUnsaidFormats(t *testing.T) {
	for _, format := range dtype.All() {
		for _, x := range []struct {
			kernel, tensor string
			args           []string
			want           dtype.DType
		}{
			{"gemm", "c", nil, gemm.Problem{DType: format}.OutDType()},
			{"gemm", "c", []string{"--group=3x5x7"}, gemm.Problem{DType: format}.OutDType()},
			{"mlp", "dw1", nil, mlp.Problem{DType: format}.GradDType()},
			{"grouped", "dw2", nil, mlp.Problem{DType: format}.GradDType()},
			{"mixture", "dw1", nil, mixture.Problem{DType: format}.GradDType()},
			{"gmm", "dp", nil, gmm.Problem{DType: format}.GradDType()},
			{"norm", "w", nil, norm.Problem{DType: format}.WeightDType},
			{"attention", "bias", []string{"--bias=shared"}, attention.Bias{}.DType},
		} {
			op := opOf(t, x.kernel, append(x.args, "--dtype="+format.String()))
			found := false
			for _, tensor := range op.Tensors() {
				if tensor.Name == x.tensor {
					require.Equal(t, x.want, tensor.DType, "%s %v: %s", x.kernel, format, x.tensor)
					found = true
				}
			}
			require.True(t, found, "%s has no %s", x.kernel, x.tensor)
		}
	}
}
