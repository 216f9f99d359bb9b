package attention

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// TestParseBackwardConfig reads back what configurations are called, and says what is none.
func TestParseBackwardConfig(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 512, SeqKV: 512, HeadDim: 64, DType: dtype.Float16}
	for _, impl := range Impls() {
		for _, c := range backwardCandidates(&caps, p, impl) {
			for _, v := range append(backwardVariants(&caps, p, c), c) {
				got, err := ParseBackwardConfig(v.String())
				require.NoError(t, err)
				if v.fused() {
					v.DKV, v.DQ = BackwardTile{}, BackwardTile{}
				}
				require.Equal(t, v, got)
			}
		}
	}
	for text, want := range map[string]string{
		"":                              `"" does not begin with a path`,
		"auto dkv sg1":                  `"auto dkv sg1" does not begin with a path`,
		"coopmat2 sg1":                  `"sg1" of "coopmat2 sg1" is no part of a configuration`,
		"coopmat2 dkv sgx":              `"sgx" of "coopmat2 dkv sgx" is no part of a configuration`,
		"coopmat2 fused rt1 sg2 by16":   `"coopmat2 fused rt1 sg2 by16" is no configuration: it would be "coopmat2 fused sg2 rt1 by16"`,
		"coopmat fused sg2 rt1 by16 dq": `"coopmat fused sg2 rt1 by16 dq" is no configuration: it would be "coopmat fused sg2 rt1 by16"`,
	} {
		_, err := ParseBackwardConfig(text)
		require.EqualError(t, err, "attention: backward: "+want)
	}
}
