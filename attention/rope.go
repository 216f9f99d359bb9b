package attention

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/internal/enum"
)

// A Scaling makes the frequencies of RoPE fit more positions than a model was trained on.
type Scaling uint8

// The scalings. Each divides the frequency of a pair by Factor, wholly, in part or not at all.
const (
	Unscaled Scaling = iota
	Linear           // wholly (kaiokendev, Chen et al., arXiv:2306.15595)
	Llama3           // by how often the pair turns in Original positions: wholly up to Low turns, not at all from High turns on
	YaRN             // likewise, but between Low and High by the pair's number (Peng et al., arXiv:2309.00071)
)

var scalingNames = enum.Names[Scaling]{Unscaled: "none", Linear: "linear", Llama3: "llama3", YaRN: "yarn"}

// String returns the name that flags have.
func (s Scaling) String() string { return scalingNames.Of(s) }

// ParseScaling accepts the names that String returns.
func ParseScaling(name string) (Scaling, error) {
	return scalingNames.Parse("rope: scaling", name)
}

// Frequencies say by which angle RoPE turns the pairs of a row from a position to the next. Pair i
// has base^(-2i/dims) radians (Su et al., RoFormer, arXiv:2104.09864), which a Scaling may divide.
// The results are as Hugging Face has them for the rope_type default, linear, llama3 and yarn.
type Frequencies struct {
	Dims      int     // elements of a row that are rotated, two for each pair
	Base      float64 // rope_theta; 0: 10000
	Scaling   Scaling
	Factor    float64 // how many times as many positions; for a Scaling only
	Original  int     // original_max_position_embeddings, for Llama3 and YaRN
	Low, High float64 // in turns; 0: 1 and 4 for Llama3 (low_freq_factor, high_freq_factor), 1 and 32 for YaRN (beta_slow, beta_fast)
	// Attention is a factor of the rotated rows. 0 is 1, for YaRN 0.1 ln(Factor) + 1.
	Attention float64
}

// Validate returns an error that names the first field that is out of its range.
func (f Frequencies) Validate() error {
	base, low, high := f.limits()
	turns := f.Scaling == Llama3 || f.Scaling == YaRN
	switch {
	case f.Dims <= 0 || f.Dims%2 != 0:
		return fmt.Errorf("rope: dims=%d is not positive and even", f.Dims)
	case !(base > 1 && base <= math.MaxFloat32):
		return fmt.Errorf("rope: base=%g is not more than 1, and finite in float32", base)
	case f.Scaling > YaRN:
		return fmt.Errorf("rope: scaling=%v is not one of %v", f.Scaling, scalingNames)
	case f.Scaling != Unscaled && !(f.Factor >= 1 && f.Factor <= math.MaxInt32):
		return fmt.Errorf("rope: factor=%g is not from 1 to %d, as scaling=%v needs", f.Factor, math.MaxInt32, f.Scaling)
	case f.Scaling == Unscaled && f.Factor != 0:
		return fmt.Errorf("rope: factor=%g is set, but no scaling", f.Factor)
	case turns && f.Original <= 0:
		return fmt.Errorf("rope: original=%d is not positive, as scaling=%v needs", f.Original, f.Scaling)
	case turns && !(low > 0 && low < high && high <= math.MaxInt32):
		return fmt.Errorf("rope: low=%g and high=%g are not positive and in order", low, high)
	case !(f.Attention >= 0 && f.Attention <= math.MaxInt32):
		return fmt.Errorf("rope: attention=%g is not from 0 to %d", f.Attention, math.MaxInt32)
	}
	return nil
}

// limits returns Base, Low and High with their defaults.
func (f *Frequencies) limits() (base, low, high float64) {
	or := func(x, other float64) float64 {
		if x == 0 {
			return other
		}
		return x
	}
	most := 4.0
	if f.Scaling == YaRN {
		most = 32
	}
	return or(f.Base, 10000), or(f.Low, 1), or(f.High, most)
}

// AttentionFactor returns the factor of the rotated rows: Attention or its default.
func (f Frequencies) AttentionFactor() float64 {
	switch {
	case f.Attention != 0:
		return f.Attention
	case f.Scaling == YaRN:
		return 0.1*math.Log(f.Factor) + 1
	}
	return 1
}

// Turns returns the frequency of each pair in 2^-64 of a turn. Multiplied by a position in 64 bits they
// leave the angle without whole turns ([Angle]): right to 2^-22 at position 2^31, as float64 is.
func (f Frequencies) Turns() []uint64 {
	base, _, _ := f.limits()
	turns := make([]uint64, f.Dims/2)
	for i := range turns {
		angle := math.Pow(base, -2*float64(i)/float64(f.Dims))
		if f.Scaling != Unscaled {
			kept := f.kept(i, angle)
			angle *= kept + (1-kept)/f.Factor
		}
		turns[i] = uint64(math.Round(math.Ldexp(angle/(2*math.Pi), 64)))
	}
	return turns
}

// kept returns the part of the frequency of pair i, an angle, that is not divided by Factor.
func (f *Frequencies) kept(i int, angle float64) float64 {
	base, low, high := f.limits()
	switch f.Scaling {
	case Llama3:
		turns := float64(f.Original) * angle / (2 * math.Pi)
		return max(0, min((turns-low)/(high-low), 1))
	case YaRN:
		pair := func(turns float64) float64 { // that turns so often in the original positions
			return float64(f.Dims) * math.Log(float64(f.Original)/(2*math.Pi*turns)) / (2 * math.Log(base))
		}
		first := max(0, math.Floor(pair(high)))
		last := min(math.Ceil(pair(low)), float64(f.Dims-1))
		if first == last {
			last += 0.001
		}
		return 1 - max(0, min((float64(i)-first)/(last-first), 1))
	}
	return 0
}

// Angle returns position times an element of Turns in radians, from -π to π.
func Angle(turns uint64, position int) float64 {
	return float64(int64(uint64(position)*turns)) * (math.Pi / (1 << 63))
}

// Table returns the tables Cos and Sin of Append for positions 0 to positions-1, (positions, dims/2): the
// cosines and sines of the angles, times the AttentionFactor, rounded once. It panics unless positions is
// positive and f is valid.
func (f Frequencies) Table(positions int) (cos, sin []float32) {
	if err := f.Validate(); err != nil || positions < 1 {
		panic(fmt.Sprintf("attention: Table: positions=%d is not positive, or %v", positions, err))
	}
	turns, factor := f.Turns(), f.AttentionFactor()
	for p := range positions {
		for _, t := range turns {
			s, c := math.Sincos(Angle(t, p))
			cos, sin = append(cos, float32(factor*c)), append(sin, float32(factor*s))
		}
	}
	return cos, sin
}
