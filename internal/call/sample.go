package call

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/sample/ref"
	"github.com/flashvk/flashvk/pipelines/sample"
	"github.com/flashvk/flashvk/vk/kit"
)

// Sample is a call of sample.Forward.
type Sample struct {
	sample.Problem
	Special bool // some logits are NaN or infinite, and in some rows all
	Levels  bool // logits are whole numbers, many of them equal
	onePass
	Data
}

// Tensors implements Call. Integers of files and benchmarks are ones that float32 has, which these compare in.
func (s *Sample) Tensors() []Tensor {
	seen, state := []int{s.Rows, s.SeenWords()}, []int{s.Rows, 4}
	return []Tensor{
		{Name: "logits", DType: s.DType, Shape: []int{s.Rows, s.Vocabulary}, Own: true},
		{Name: "seen", DType: dtype.Int32, Shape: seen, Role: Update, Own: true, Ints: make([]int32, Product(seen)), Free: true, Off: !s.Penalizes()},
		{Name: "state", DType: dtype.Int32, Shape: state, Role: Update, Own: true, Ints: sample.States(s.Seed%(1<<24), s.Rows), Free: true, Off: !s.Draws()},
		{Name: "tokens", DType: dtype.Int32, Shape: []int{s.Rows}, Role: Output},
	}
}

func (s *Sample) Adjust(x Values) {
	logits, rng := s.Numbers(62, s.DType, s.Rows*s.Vocabulary, OrOne(s.Magnitude)), s.Rand(63)
	for i, x := range logits {
		if x += s.Mean * OrOne(s.Magnitude); s.Levels {
			x = math.Round(x)
		}
		logits[i] = float64(s.DType.Round(float32(x)))
	}
	for n := 0; s.Special && n < len(logits); n++ {
		i := rng.IntN(len(logits))
		logits[i] = one(rng, math.NaN(), math.Inf(-1), math.Inf(-1), logits[i], logits[i], logits[i])
		if rng.IntN(4*s.Vocabulary) == 0 {
			logits[i] = math.Inf(1)
		}
		if rng.IntN(8*s.Vocabulary) == 0 {
			for v := range s.Vocabulary {
				logits[i/s.Vocabulary*s.Vocabulary+v] = one(rng, math.NaN(), math.Inf(-1))
			}
		}
	}
	x["logits"] = logits
	for range s.Rows * s.SeenWords() {
		x["seen"] = append(x["seen"], float64(int32(rng.Uint32())))
	}
	for range s.Rows * 4 {
		x["state"] = append(x["state"], float64(int32(rng.Uint32())))
	}
}

// Want implements Call. Rows whose token roundings decide must only be written.
func (s *Sample) Want(x Values, _ kit.Pass) Outputs {
	if x["logits"] == nil {
		s.Adjust(x)
	}
	rows, _ := s.compared(64, s.Rows, 1)
	row := func(name string, n, i int) []float64 { // zeros of a tensor that the call does not have
		if x[name] == nil {
			return make([]float64, n)
		}
		return slices.Clone(x[name][i*n:][:n])
	}
	words, some := s.SeenWords(), []int{}
	tokens, seen, state := []float64{}, []float64{}, []float64{} // not nil: outputs, even if no row is compared
	for _, i := range rows {
		marks, of := row("seen", words, i), row("state", 4, i)
		list := ref.Tokens(row("logits", s.Vocabulary, i), marks, of, s.Problem)
		if len(list) > 1 {
			continue
		}
		if token := list[0]; token >= 0 {
			marks[token/32] = float64(int32(marks[token/32]) | 1<<(token%32))
		}
		of[3] = float64(int32(of[3]) + 1)
		some, tokens, seen, state = append(some, i), append(tokens, float64(list[0])), append(seen, marks...), append(state, of...)
	}
	return Outputs{
		"tokens": Wanted{Want: tokens, Sample: some},
		"seen":   Wanted{Want: seen, Sample: Elements(some, words)},
		"state":  Wanted{Want: state, Sample: Elements(some, 4)},
	}
}

func (s *Sample) Host() Host {
	return hostedForward(s, s.Problem, sample.Choose, sample.Forward)
}

// drawSample draws logits and filters.
func drawSample(x *Sample, family, rng *rand.Rand, s Space) {
	draws, topK, topP, penalty := family.IntN(6) > 0, chance(family, 2), chance(family, 2), chance(family, 3)
	x.Data = DrawData(family, rng)
	x.Rows, x.Vocabulary, x.Special, x.Levels = Size(rng, 300), Size(rng, 20000), chance(rng, 4), chance(rng, 3)
	if chance(rng, 2) { // more elements than invocations have room for
		x.Rows, x.Vocabulary = 1+rng.IntN(40), 1000+rng.IntN(9000)
	}
	Within(rng, s.Budget(rng), func() float64 { return 15 * float64(x.Rows) * float64(x.Vocabulary) }, &x.Rows, &x.Vocabulary)
	if draws {
		x.Temperature, x.MinP = TenTo(rng, -1, 1), one(rng, 0, 0, 0.02, 0.3, 1)
	}
	x.Magnitude, x.Mean = TenTo(rng, -1, 0.7)*OrOne(x.Temperature), one(rng, 0.0, 0, 2, -5)
	if x.Kind == OutlierKind && chance(rng, 2) {
		x.Kind = NormalKind
	}
	if topK {
		x.TopK = one(rng, 1, 2, 50, x.Vocabulary, 1+rng.IntN(x.Vocabulary), 1+rng.IntN(x.Vocabulary))
	}
	if topP {
		x.TopP = one(rng, 0.1, 0.5, 0.9, 0.99, 1, rng.Float64())
	}
	if penalty {
		x.RepetitionPenalty = one(rng, 1.1, 1.3, 2, 0.7)
	}
}
