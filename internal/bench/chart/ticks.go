package chart

import (
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
)

// label is that of a tick.
func label(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

// powersOfTwo are the ticks of a logarithmic axis of lengths: powers of two with labels, and the
// lengths of the data without.
type powersOfTwo struct{ data []float64 }

// Ticks implements plot.Ticker.
func (p powersOfTwo) Ticks(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	if !(least > 0) || math.IsInf(most, 1) {
		return nil
	}
	for x := math.Exp2(math.Ceil(math.Log2(least))); x <= most; x *= 2 {
		ticks = append(ticks, plot.Tick{Value: x, Label: label(x)})
	}
	for _, x := range p.data {
		if x >= least && x <= most && !slices.ContainsFunc(ticks, func(t plot.Tick) bool { return t.Value == x }) {
			ticks = append(ticks, plot.Tick{Value: x})
		}
	}
	return ticks
}

// decades are the ticks of a logarithmic axis: powers of ten with labels, and their multiples
// without.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	if !(least > 0) || math.IsInf(most, 1) {
		return nil
	}
	for e := int(math.Floor(math.Log10(least))); e <= int(math.Ceil(math.Log10(most))); e++ {
		for i := 1.0; i < 10; i++ {
			t := plot.Tick{Value: i * math.Pow10(e)}
			if t.Value < least || t.Value > most {
				continue
			}
			if i == 1 {
				t.Label = label(t.Value)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// linear are ticks at multiples of 1, 2 or 5 times a power of ten, four of them
// or more.
type linear struct{}

// Ticks implements plot.Ticker.
func (linear) Ticks(least, most float64) []plot.Tick {
	span := most - least
	// If the span is only a few units in the last place of the numbers, multiples of the step
	// may be equal.
	if !(span > 1e-12*max(math.Abs(least), math.Abs(most))) || math.IsInf(span, 1) {
		return []plot.Tick{{Value: least, Label: label(least)}}
	}
	step := math.Pow(10, math.Floor(math.Log10(span/4)))
	for _, factor := range []float64{5, 2} {
		if span/(factor*step) >= 4 {
			step *= factor
			break
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(least / step); i*step <= most*(1+1e-9); i++ {
		x := i*step + 0 // + 0 makes 0 of -0
		ticks = append(ticks, plot.Tick{Value: x, Label: label(x)})
	}
	return ticks
}
