package chart

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

// An axis maps values from low to high to places.
type axis struct {
	log       bool
	low, high float64
	from, to  float64
}

// at returns the place of a value, the middle if the axis has one value.
func (a axis) at(x float64) float64 {
	low, high := a.low, a.high
	if a.log {
		x, low, high = math.Log(x), math.Log(low), math.Log(high)
	}
	if low == high {
		return (a.from + a.to) / 2
	}
	return a.from + (a.to-a.from)*(x-low)/(high-low)
}

// A tick is a place on an axis. Its label may be "".
type tick struct {
	value float64
	label string
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

// measured returns a tick at each of the sizes, with a label where there is room. Powers of two
// have the first choice.
func (a axis) measured(sizes []float64) (ticks []tick) {
	sizes = slices.Compact(slices.Sorted(slices.Values(sizes)))
	slices.SortStableFunc(sizes, func(x, y float64) int { return cmp.Compare(odd(x), odd(y)) })
	for _, x := range sizes {
		name := number(x)
		crowded := slices.ContainsFunc(ticks, func(t tick) bool {
			return t.label != "" && math.Abs(a.at(x)-a.at(t.value)) < (textWidth(name, textSize)+textWidth(t.label, textSize))/2+textSize
		})
		if crowded {
			name = ""
		}
		ticks = append(ticks, tick{x, name})
	}
	return ticks
}

// odd returns 0 for powers of two, and 1.
func odd(x float64) int {
	if f, _ := math.Frexp(x); f == 0.5 {
		return 0
	}
	return 1
}

// decades returns powers of ten.
func (a axis) decades() (ticks []tick) {
	low, high := math.Round(math.Log10(a.low)), math.Round(math.Log10(a.high))
	const most = 8
	for e := low; e <= high; e += math.Floor((high-low)/most) + 1 {
		ticks = append(ticks, tick{math.Pow(10, e), number(math.Pow(10, e))})
	}
	return ticks
}

// linear returns multiples of 1, 2 or 5 times a power of ten, four of them or more.
func (a axis) linear() (ticks []tick) {
	span := a.high - a.low
	// If the span is only a few units in the last place of the numbers, multiples of the step
	// may be equal.
	if !(span > 1e-12*max(math.Abs(a.low), math.Abs(a.high))) {
		return []tick{{a.low, number(a.low)}}
	}
	step := math.Pow(10, math.Floor(math.Log10(span/4)))
	for _, factor := range []float64{5, 2} {
		if span/(factor*step) >= 4 {
			step *= factor
			break
		}
	}
	for i := math.Ceil(a.low / step); i*step <= a.high+step*1e-9; i++ {
		x := i*step + 0 // + 0 makes 0 of -0
		ticks = append(ticks, tick{x, number(x)})
	}
	return ticks
}
