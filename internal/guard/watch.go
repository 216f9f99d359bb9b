package guard

import (
	"fmt"
	"math"
	"slices"

	"github.com/flashvk/flashvk/dtype"
)

// Surroundings are the values in memory that is not input of a run. Both runs must give the same
// bits, so that a value that reaches an output shows as itself or as a difference.
type Surroundings struct {
	Name    string
	garbage func(i int) float64
	length  float64 // garbage of int32
	visible float64 // garbage of bools
	poison  float64
	integer float64 // poison of formats without NaN
}

// nan survives View.Encode and View.Decode bit by bit.
var nan = math.Float64frombits(0x7ff8 << 48)

var notFinite = [...]float64{nan, math.Inf(1), nan, math.Inf(-1)}

// The surroundings of the first run and of the second.
var (
	// NaN reaches everything that is computed from it, but a comparison (max) may drop it.
	NotFinite = Surroundings{
		Name:    "NaN and Inf",
		garbage: func(i int) float64 { return notFinite[i%len(notFinite)] },
		length:  1 << 20,
		visible: 1,
		poison:  nan,
		integer: -1,
	}
	// Large finite values win a maximum. They, and the poison, are exact in
	// every format.
	Finite = Surroundings{
		Name:    "±28672",
		garbage: func(i int) float64 { return 28672 * float64(1-i%2*2) },
		length:  -3,
		visible: 0,
		poison:  -12288,
		integer: -12288,
	}
)

// Garbage returns the values around and between the rows of inputs of a format.
func (s *Surroundings) Garbage(t dtype.DType) func(i int) float64 {
	switch t {
	case dtype.Int32:
		return func(int) float64 { return s.length }
	case dtype.Bool:
		return func(int) float64 { return s.visible }
	}
	return s.garbage
}

// Poison returns the values everywhere in outputs of a format: elements not yet written, and
// canaries.
func (s *Surroundings) Poison(t dtype.DType) func(i int) float64 {
	x := s.poison
	if !t.Float() {
		x = float64(t.Round(float32(s.integer))) // a kernel may write the same
	}
	return func(int) float64 { return x }
}

// same reports whether a and b are the same bits.
func same(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

// A memory is the Data of one or several views.
type memory struct {
	first   *View
	outputs []*View // the views that may be written
	before  []float64
}

// watch calls a function that may change nothing but the elements of outputs. It returns the
// function's error, or says what else it changed, inputs first.
func watch(views []*View, output func(i int) bool, call func() error) error {
	var memories []*memory
	at := map[*float64]*memory{}
	for i, v := range views {
		m := at[&v.Data[0]]
		if m == nil {
			m = &memory{first: v, before: slices.Clone(v.Data)}
			at[&v.Data[0]] = m
			memories = append(memories, m)
		}
		if output(i) {
			m.outputs = append(m.outputs, v)
		}
	}
	if err := call(); err != nil {
		return err
	}
	slices.SortStableFunc(memories, func(a, b *memory) int { return min(len(a.outputs), 1) - min(len(b.outputs), 1) })
	for _, m := range memories {
		if err := m.check(); err != nil {
			return err
		}
	}
	return nil
}

// check compares the parts that must not change with what they were.
func (m *memory) check() error {
	now := m.first.Data
	if len(m.outputs) > 0 { // elements count as what they were
		now = slices.Clone(now)
		for _, o := range m.outputs {
			n := o.Shape[len(o.Shape)-1]
			o.rows(func(at int) { copy(now[at:at+n], m.before[at:at+n]) })
		}
	}
	for i, x := range now {
		if same(x, m.before[i]) {
			continue
		}
		if len(m.outputs) == 0 {
			return fmt.Errorf("input %s was changed: backing element %d is %g, was %g", m.first.Name, i, x, m.before[i])
		}
		o := m.outputs[0]
		for _, other := range m.outputs { // that lies before it, where several do
			if other.Offset <= i && other.Offset >= o.Offset {
				o = other
			}
		}
		return fmt.Errorf("%s was written outside its elements: backing element %d, %s, is %g, was %g", o.Name, i, o.where(i), x, m.before[i])
	}
	return nil
}
