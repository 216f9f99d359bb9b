package attention

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFrequencies compares with the formulas of the papers: RoPE's own, and those of Hugging Face's
// modeling_rope_utils.py, computed apart.
func TestFrequencies(t *testing.T) {
	for _, x := range []struct {
		f    Frequencies
		want []float64 // radians
	}{
		{Frequencies{Dims: 6, Base: 1000}, []float64{1, 0.1, 0.01}},
		{Frequencies{Dims: 6, Base: 1000, Scaling: Linear, Factor: 4}, []float64{0.25, 0.025, 0.0025}},
		{Frequencies{Dims: 16, Base: 500000, Scaling: Llama3, Factor: 8, Original: 8192}, []float64{
			1, 0.19392274474868576, 0.03760603093086393, 0.0072926647372171085,
			0.0005248461609929547, 3.428102195952591e-05, 6.647869871181236e-06, 1.2891731721515574e-06,
		}},
		{Frequencies{Dims: 16, Scaling: YaRN, Factor: 4, Original: 2048}, []float64{
			1, 0.31622776601683794, 0.1, 0.02569350598886808, 0.00625, 0.0013834964763236657, 0.00025, 7.905694150420948e-05,
		}},
		{Frequencies{Dims: 16, Scaling: YaRN, Factor: 4, Original: 256}, []float64{
			1, 0.2569350598886808, 0.0625, 0.01383496476323666, 0.0025, 0.0007905694150420947, 0.00025, 7.905694150420948e-05,
		}},
	} {
		require.NoError(t, x.f.Validate())
		for i, turns := range x.f.Turns() {
			require.InDelta(t, x.want[i], float64(turns)*math.Pi/(1<<63), 1e-15*x.want[i]+0x1p-61, "pair %d of %+v", i, x.f)
		}
	}
	require.Equal(t, 1.0, Frequencies{Scaling: Llama3, Factor: 8}.AttentionFactor())
	require.InDelta(t, 1.1386294361, Frequencies{Scaling: YaRN, Factor: 4}.AttentionFactor(), 1e-10)
	require.Equal(t, 2.0, Frequencies{Scaling: YaRN, Factor: 4, Attention: 2}.AttentionFactor())
}

// TestAngle wants angles at the largest positions without whole turns as exactly as at small ones:
// compared with π of 100 digits.
func TestAngle(t *testing.T) {
	const digits = "3.141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825342117068"
	pi, _, err := big.ParseFloat(digits, 10, 400, big.ToNearestEven)
	require.NoError(t, err)
	turn := Frequencies{Dims: 2}.Turns()[0] // one radian
	for _, position := range []int{0, 1, 3, -3, 1 << 20, math.MaxInt32, math.MinInt32} {
		turns := new(big.Float).SetPrec(400).Quo(big.NewFloat(float64(position)), new(big.Float).Mul(pi, big.NewFloat(2)))
		whole, _ := new(big.Float).Add(turns, big.NewFloat(math.Copysign(0.5, float64(position)))).Int(nil)
		rest, _ := turns.Sub(turns, new(big.Float).SetInt(whole)).Float64()
		require.InDelta(t, 2*math.Pi*rest, Angle(turn, position), 0x1p-22, position)
	}
}

// TestTable has the cosines and sines of every position, times the factor.
func TestTable(t *testing.T) {
	f := Frequencies{Dims: 6, Base: 1000, Attention: 3}
	cos, sin := f.Table(5)
	require.Len(t, cos, 15)
	for p := range 5 {
		for i, turn := range []float64{1, 0.1, 0.01} {
			require.InDelta(t, 3*math.Cos(float64(p)*turn), float64(cos[p*3+i]), 3e-7)
			require.InDelta(t, 3*math.Sin(float64(p)*turn), float64(sin[p*3+i]), 3e-7)
		}
	}
	require.Panics(t, func() { f.Table(0) })
	require.Panics(t, func() { Frequencies{Dims: 3}.Table(5) })
}

// TestFrequenciesRefused names the field that breaks a rule.
func TestFrequenciesRefused(t *testing.T) {
	for want, f := range map[string]Frequencies{
		"rope: dims=3 is not positive and even":                               {Dims: 3},
		"rope: base=1 is not more than 1, and finite in float32":              {Dims: 2, Base: 1},
		"rope: scaling=Scaling(4) is not one of none, linear, llama3, yarn":   {Dims: 2, Scaling: 4},
		"rope: factor=0 is not from 1 to 2147483647, as scaling=linear needs": {Dims: 2, Scaling: Linear},
		"rope: factor=2 is set, but no scaling":                               {Dims: 2, Factor: 2},
		"rope: original=0 is not positive, as scaling=yarn needs":             {Dims: 2, Scaling: YaRN, Factor: 2},
		"rope: low=5 and high=4 are not positive and in order":                {Dims: 2, Scaling: Llama3, Factor: 2, Original: 9, Low: 5},
		"rope: attention=-1 is not from 0 to 2147483647":                      {Dims: 2, Attention: -1},
	} {
		require.EqualError(t, f.Validate(), want)
	}
}
