// Package ref chooses tokens in float64, and derives which others a kernel may choose, because roundings of float32
// decide. It uses no device.
package ref

import (
	"cmp"
	"math"
	"slices"

	"github.com/flashvk/flashvk/internal/attention/philox"
	"github.com/flashvk/flashvk/pipelines/sample"
)

const (
	u     = 0x1p-24  // the roundoff of an operation
	least = 0x1p-126 // what a device may take for 0
)

// An interval is what a number is on some device.
type interval struct{ lo, hi float64 }

func exact(x float64) interval { return interval{x, x} }

// An element is a token that is neither NaN nor -Inf.
type element struct {
	token   int
	x       interval // its logit
	w       interval // its weight
	score   interval // w/e
	kept    bool     // on some device
	keptAll bool     // on every device
}

// Tokens returns which tokens of a row of logits a device may choose: nearly always one. None is -1. Seen and
// State are the rows of the tensors, as numbers.
func Tokens(logits, seen, state []float64, p sample.Problem) []int {
	list := elements(logits, seen, p)
	if len(list) == 0 {
		return []int{-1}
	}
	top := exact(math.Inf(-1))
	for _, e := range list {
		top = interval{max(top.lo, e.x.lo), max(top.hi, e.x.hi)}
	}
	if !p.Draws() {
		return winners(list, func(e *element) interval { return e.x })
	}
	for i := range list {
		list[i].weigh(top, p.Temperature)
	}
	if p.TopK > 0 && p.TopK < p.Vocabulary {
		count := func(*element) interval { return exact(1) }
		filter(list, count, func(above, _ interval) (some, all bool) {
			return above.lo < float64(p.TopK), above.hi < float64(p.TopK)
		})
	}
	if p.TopP > 0 && p.TopP < 1 {
		off := u * (64 + float64(p.Vocabulary)/128) // of the sum of an invocation and of all
		weight := func(e *element) interval { return e.w }
		filter(list, weight, func(above, sum interval) (some, all bool) {
			return above.lo*(1-off) < p.TopP*sum.hi*(1+off), above.hi*(1+off) < p.TopP*sum.lo*(1-off)
		})
	}
	if p.MinP > 0 {
		step := p.Temperature * math.Log(p.MinP)
		off := 2 * u * (math.Abs(step) + max(math.Abs(top.lo), math.Abs(top.hi)))
		for i := range list {
			e := &list[i]
			e.kept = e.kept && (e.x.hi >= top.lo || e.x.hi >= top.lo+step-off)
			e.keptAll = e.keptAll && (e.x.lo >= top.hi || e.x.lo >= top.hi+step+off)
		}
	}
	word := func(x float64) uint32 { return uint32(int32(x)) }
	list = slices.DeleteFunc(list, func(e element) bool { return !e.kept })
	for i := range list {
		list[i].race([2]uint32{word(state[0]), word(state[1])}, word(state[2]), word(state[3]))
	}
	return winners(list, func(e *element) interval { return e.score })
}

// elements returns the elements of a row. A penalty is rounded, and so is the product with it.
func elements(logits, seen []float64, p sample.Problem) (list []element) {
	for v, x := range logits {
		if math.IsNaN(x) || math.IsInf(x, -1) {
			continue
		}
		e := element{token: v, x: exact(x), kept: true, keptAll: true}
		if p.Penalizes() && uint32(int32(seen[v/32]))>>(v%32)&1 != 0 {
			if x *= p.RepetitionPenalty; x > 0 {
				x /= p.RepetitionPenalty * p.RepetitionPenalty
			}
			off := 3*u*math.Abs(x) + least
			if e.x = (interval{x - off, x + off}); x == 0 || math.IsInf(x, 0) {
				e.x = exact(x)
			}
		}
		list = append(list, e)
	}
	return list
}

// weigh computes the weight exp(d). The difference, the inverse temperature and their product are rounded, and
// exp of a device is off by 3 + 2|d| units in the last place (Vulkan specification).
func (e *element) weigh(top interval, temperature float64) {
	power := func(from, to, sign float64) float64 {
		if from == to {
			return 1
		}
		d := max(min((from-to)/temperature, 0), -1000) // 1000: far below the least weight
		return math.Exp(d + sign*u*(6+7*math.Abs(d)))
	}
	e.w = interval{power(e.x.lo, top.hi, -1), power(e.x.hi, top.lo, 1)}
	if e.w.hi += least; e.w.lo < 2*least {
		e.w.lo = 0
	}
}

// filter keeps elements by what those that are larger have, and by the sum over all that were kept.
func filter(list []element, of func(*element) interval, keeps func(above, sum interval) (some, all bool)) {
	type part struct{ x, sum float64 }
	var lows, highs []part // by falling x, with the sums of those up to it
	for i := range list {
		e := &list[i]
		if e.kept {
			highs = append(highs, part{e.x.hi, of(e).hi})
		}
		if e.keptAll {
			lows = append(lows, part{e.x.lo, of(e).lo})
		}
	}
	for _, parts := range [][]part{lows, highs} {
		slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(b.x, a.x) })
		for i := range parts[min(1, len(parts)):] {
			parts[i+1].sum += parts[i].sum
		}
	}
	before := func(parts []part, x float64) float64 { // the sum of the parts above x
		n, _ := slices.BinarySearchFunc(parts, x, func(p part, x float64) int {
			if p.x > x {
				return -1
			}
			return 1
		})
		if n == 0 {
			return 0
		}
		return parts[n-1].sum
	}
	sum := interval{before(lows, math.Inf(-1)), before(highs, math.Inf(-1))}
	for i := range list {
		e := &list[i]
		above := interval{before(lows, e.x.hi), before(highs, e.x.lo)}
		if e.kept && e.x.hi > e.x.lo {
			above.hi -= of(e).hi // itself
		}
		some, all := keeps(above, sum)
		e.kept, e.keptAll = e.kept && some, e.keptAll && all
	}
}

// race computes w/e. A device's log is off by 2^-21 near 1, its division by 2.5 units in the last place. Below
// 1/8 the kernel has a series.
func (e *element) race(seed [2]uint32, stream, drawn uint32) {
	words := philox.Words([4]uint32{uint32(e.token / 4), stream, drawn, 0}, seed)
	uniform := (float64(words[e.token%4]) + 0.5) / (1 << 32)
	x, off := -math.Log1p(-uniform), 0x1p-17
	if uniform < 0.124 {
		off = 0x1p-20
	}
	e.score = interval{e.w.lo / (x * (1 + off)), e.w.hi / (x * (1 - off))}
	if !e.keptAll {
		e.score.lo = 0
	}
}

// winners returns the tokens of the elements that may be the first of the largest.
func winners(list []element, of func(*element) interval) (tokens []int) {
	best, first := math.Inf(-1), 0
	for i := range list {
		if x := of(&list[i]); x.lo > best {
			best, first = x.lo, list[i].token
		}
	}
	earlier := map[interval]bool{} // those that were equal logits are equal, however they are rounded
	for i := range list {
		x := of(&list[i])
		if (x.hi > best || x.hi == best && list[i].token <= first) && !earlier[x] {
			tokens = append(tokens, list[i].token)
		}
		earlier[x] = true
	}
	return tokens
}
