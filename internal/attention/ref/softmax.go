package ref

import "math"

// softmaxRow replaces s with its softmax and returns log(sum(exp(s))), natural
// logarithm. The sink counts in the sum, as one more element that is not in s;
// -Inf is none. It subtracts the maximum first, so that no finite s overflows.
//
// Elements that are -Inf are not seen and become 0. If there are no others, the
// log-sum-exp is the sink's.
func softmaxRow(s []float64, sink float64) (lse float64) {
	m := sink
	for _, x := range s {
		m = max(m, x)
	}
	if math.IsInf(m, -1) { // s - m would be -Inf - -Inf
		clear(s)
		return m
	}
	l := math.Exp(sink - m)
	for j, x := range s {
		s[j] = math.Exp(x - m)
		l += s[j]
	}
	for j := range s {
		s[j] /= l
	}
	return m + math.Log(l)
}
