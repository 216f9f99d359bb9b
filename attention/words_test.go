package attention

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// TestParseConfigs reads back what configurations are called, and says what is none.
func TestParseConfigs(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 512, SeqKV: 512, HeadDim: 64, DType: dtype.Float16}
	for _, impl := range Impls() {
		for _, c := range candidates(&caps, p, impl) {
			for _, v := range append(variants(&caps, p, c), c) {
				got, err := ParseConfig(v.String())
				require.NoError(t, err)
				if v.Splits == 1 { // has no word
					v.Splits = 0
				}
				require.Equal(t, v, got)
			}
		}
		for _, c := range backwardCandidates(&caps, p, impl) {
			for _, v := range append(backwardVariants(&caps, p, c), c) {
				got, err := ParseBackwardConfig(v.String())
				require.NoError(t, err)
				require.Equal(t, v, got)
			}
		}
	}
	_, err := ParseConfig("coopmat2 sg4 t2x2")
	require.EqualError(t, err, `attention: configuration "coopmat2 sg4 t2x2": "t2x2" is not one of its choices`)
	for text, want := range map[string]string{
		"":                             ` does not begin with a path`,
		"auto dkv sg1":                 ` does not begin with a path`,
		"coopmat2 sg1":                 `: "sg1" is not one of its choices`,
		"coopmat2 dkv sgx":             `: "sgx" is not one of its choices`,
		"coopmat2 dkv sg02":            `: "sg02" is not one of its choices`,
		"scalar dkv 32x32 t8x16 dq by": `: "by" is not one of its choices`,
	} {
		_, err := ParseBackwardConfig(text)
		require.EqualError(t, err, `attention: backward: configuration "`+text+`"`+want)
	}
}
