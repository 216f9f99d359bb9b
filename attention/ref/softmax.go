package ref

import "math"

// softmaxRow replaces the first visible elements of s with their softmax and
// the others with 0, and returns log(sum(exp(s))) of the visible ones, natural
// logarithm. It subtracts the maximum first, so that no finite s overflows.
//
// A row that sees nothing becomes 0, and its log-sum-exp is -Inf.
func softmaxRow(s []float64, visible int) (lse float64) {
	clear(s[visible:])
	s = s[:visible]
	if len(s) == 0 {
		return math.Inf(-1)
	}
	m := s[0]
	for _, x := range s {
		m = max(m, x)
	}
	l := 0.0
	for j, x := range s {
		s[j] = math.Exp(x - m)
		l += s[j]
	}
	for j := range s {
		s[j] /= l
	}
	return m + math.Log(l)
}
