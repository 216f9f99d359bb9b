package kernels

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestDescribe wants all descriptions of problems to have one form: FORMAT: NAME VALUE, NAME VALUE,
// WORDS.
func TestDescribe(t *testing.T) {
	for _, k := range All() {
		for _, cpu := range []bool{false, true} {
			flags := k.New()
			set := pflag.NewFlagSet(k.Name, pflag.ContinueOnError)
			flags.Add(set, true)
			op, err := flags.FromFlags(cpu)
			require.NoError(t, err, k.Name)
			list := append(flags.Suite(cpu), op)
			for _, op := range list {
				require.Regexp(t, `^(float16|bfloat16|float32): [A-Za-z-]+( [a-z]+)*( \S*[0-9]\S*|, )`, op.Describe(), k.Name)
				require.NotRegexp(t, `  |, ,|[0-9] (tokens|heads|parameters)`, op.Describe(), k.Name)
			}
		}
	}
	for args, want := range map[string]string{
		"--m=2 --n=3 --k=5 --trans=nt --dtype=bf16 --out-dtype=fp32 --batch=7 --alpha=2 --residual": "bfloat16: batch 7, m 2, n 3, k 5, nt, out float32, alpha 2, residual",
		"--group=2x3x5,0x3x5,4x4x4,5x5x5,6x6x6 --dtype=half --activation=silu":                      "float16: group 2x3x5 0x3x5 4x4x4 2 more, nn, silu",
	} {
		k, _ := Find("gemm")
		flags := k.New()
		set := pflag.NewFlagSet(k.Name, pflag.ContinueOnError)
		flags.Add(set, true)
		require.NoError(t, set.Parse(strings.Fields(args)))
		op, err := flags.FromFlags(true)
		require.NoError(t, err)
		require.Equal(t, want, op.Describe())
	}
}
