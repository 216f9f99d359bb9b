package call

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/embed"
	"github.com/flashvk/flashvk/vk/kit"
)

// Embed is a call of embed.Forward or embed.Backward.
type Embed struct {
	embed.Problem
	Direction
	Distinct int  // how many rows of the table ids name at most; 0: any
	Outside  bool // a quarter of the ids is outside of the table
	Data
}

func (e *Embed) Tensors() []Tensor {
	table, out := []int{e.Vocabulary, e.Dim}, []int{e.Tokens, e.Dim}
	y := Tensor{Name: "out", DType: e.OutDType(), Shape: out, Role: Output, Scale: e.Second, Once: true}
	if e.Accumulate && !e.Backward {
		y.Role = Update
	}
	return []Tensor{
		{Name: "ids", DType: dtype.Int32, Shape: []int{e.Tokens}, Own: true, Ints: e.ids(), Free: true},
		{Name: "table", DType: e.DType, Shape: table, Scale: e.Magnitude, Main: true, Once: true},
		{Name: "dout", DType: e.OutDType(), Shape: out, Scale: e.Magnitude, Main: true, Role: Upstream},
		y,
		{Name: "dtable", DType: e.GradDType(), Shape: table, Role: Gradient},
	}
}

// ids draws the row of each token.
func (e *Embed) ids() []int32 {
	rng, list := e.Rand(60), make([]int32, e.Tokens)
	named := make([]int32, e.Distinct)
	for i := range named {
		named[i] = rng.Int32N(int32(e.Vocabulary))
	}
	for i := range list {
		switch {
		case e.Outside && rng.IntN(4) == 0:
			list[i] = one(rng, -1, int32(e.Vocabulary), math.MinInt32, math.MaxInt32)
		case e.Distinct > 0:
			list[i] = one(rng, named...)
		default:
			list[i] = rng.Int32N(int32(e.Vocabulary))
		}
	}
	return list
}

// Adjust implements Call. It draws ids, and what an accumulated dtable held.
func (e *Embed) Adjust(x Values) {
	for _, id := range e.ids() {
		x["ids"] = append(x["ids"], float64(id))
	}
	if e.Accumulate && e.Backward {
		x["dtable"] = e.Normal(61, e.GradDType(), e.Vocabulary*e.Dim, OrOne(e.Second))
	}
}

// Hide implements Call: rows of the table without tokens, and rows of tokens outside of it.
func (e *Embed) Hide(x Values) Values {
	hidden := Values{"table": slices.Repeat([]float64{math.NaN()}, len(x["table"])), "dout": slices.Clone(x["dout"])}
	for t, row := range e.rows(x) {
		if row < 0 {
			copy(hidden["dout"][t*e.Dim:], slices.Repeat([]float64{math.NaN()}, e.Dim))
		} else {
			copy(hidden["table"][row*e.Dim:][:e.Dim], x["table"][row*e.Dim:])
		}
	}
	return hidden
}

// rows returns the row of each token; -1: none.
func (e *Embed) rows(x Values) []int {
	list, ids := make([]int, e.Tokens), x["ids"]
	for t := range list {
		if list[t] = -1; ids[t] >= 0 && int(ids[t]) < e.Vocabulary {
			list[t] = int(ids[t])
		}
	}
	return list
}

// Want implements Call. A row of an output is the sum of some rows, and of what it held.
func (e *Embed) Want(x Values, pass kit.Pass) Outputs {
	if x["ids"] == nil {
		e.Adjust(x)
	}
	sum := embedSum{x["table"], x["out"], e.DType, e.OutDType(), e.Dim}
	name, terms := "out", make([][]int, e.Tokens)
	if pass == kit.Backward {
		sum = embedSum{x["dout"], x["dtable"], e.OutDType(), e.GradDType(), e.Dim}
		name, terms = "dtable", make([][]int, e.Vocabulary)
	}
	for t, row := range e.rows(x) {
		if row >= 0 && pass == kit.Backward {
			terms[row] = append(terms[row], t)
		} else if row >= 0 {
			terms[t] = []int{row}
		}
	}
	some, elements := e.compared(62, len(terms), e.Dim)
	w := Wanted{Sample: elements}
	for _, i := range some {
		sum.add(&w, i, terms[i])
	}
	return Outputs{name: w}
}

// An embedSum has the rows that are added up to rows of an output, and what these held; nil: nothing.
type embedSum struct {
	from, held   []float64
	format, into dtype.DType
	dim          int
}

// add appends a row of the output: the sum of terms. Each term takes part in additions in float32, in as
// many as its block of 32 terms has and one for each further block; the sum is rounded to another format.
func (s *embedSum) add(w *Wanted, row int, terms []int) {
	n, additions := len(terms), min(len(terms)-1, 32+len(terms)/32)
	if s.held != nil {
		additions++
	}
	for c := range s.dim {
		sum, size, bound := 0.0, 0.0, 0.0
		for _, t := range terms {
			sum, size = sum+s.from[t*s.dim+c], size+math.Abs(s.from[t*s.dim+c])
		}
		if s.held != nil {
			sum, size = sum+s.held[row*s.dim+c], size+math.Abs(s.held[row*s.dim+c])
		}
		if n > 0 {
			bound = 1.01 * tolerance.Roundoff32 * float64(additions) * size
			if s.into != dtype.Float32 && (additions > 0 || s.into != s.format) {
				bound += tolerance.Stored(s.into, math.Abs(sum)+bound)
			}
		}
		w.Want, w.Bounds = append(w.Want, sum), append(w.Bounds, bound)
	}
}

func (e *Embed) Host() Host {
	return hosted(e, e.Problem, embed.Choose, embed.Forward, embed.Backward)
}

// drawEmbed draws rows of a table.
func drawEmbed(e *Embed, family, rng *rand.Rand, s Space) {
	for _, format := range []*dtype.Option{&e.Out, &e.Grad} {
		if chance(family, 3) {
			*format = dtype.Some(one(family, dtype.All()...))
		}
	}
	e.Backward, e.Accumulate = chance(family, 2), chance(family, 3)
	e.Data = DrawData(family, rng)
	e.Outside = chance(rng, 3)
	switch rng.IntN(4) {
	case 0:
		e.Distinct = 1
	case 1:
		e.Distinct = Size(rng, 60)
	}
	e.Tokens, e.Vocabulary, e.Dim = Size(rng, 1500), Size(rng, 3000), Size(rng, 1500)
	if chance(rng, 4) { // more than a tile of the sort
		e.Tokens, e.Dim = 1000+rng.IntN(8000), Size(rng, 40)
	}
	Within(rng, s.Budget(rng), func() float64 { return 20 * float64(e.Tokens+e.Vocabulary) * float64(e.Dim) }, &e.Tokens, &e.Vocabulary, &e.Dim)
	most := min(Most(e.DType), Most(e.OutDType()), Most(e.GradDType())) / 2
	e.Second = min(e.Second, most/6)
	if most /= e.Largest(); e.Backward {
		most /= float64(e.Tokens) // all of one row
	}
	if OrOne(e.Magnitude) > most {
		e.Magnitude = most
	}
}
