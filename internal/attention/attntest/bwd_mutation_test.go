package attntest

import (
	"cmp"
	"slices"
	"testing"
)

// bwdMistakes and bwdFeatureMistakes are all mistakes of bwdKernel itself, and some that it takes
// from kernel.
var bwdMistakes = []mistake{
	{"Delta ignored", "dq["},
	{"Delta of the first head", "dq["},
	{"Delta of the row before", "dq["},
	{"Delta in float16", "want"},
	{"dLSE ignored", "want"},
	{"dLSE added", "want"},
	{"dLSE read with LSE's strides", ""},
	{"O read with dO's strides", ""},
	{"dO read with O's strides in Delta", ""},
	{"dO read with O's strides", ""},
	{"LSE in base 2", "want"},
	{"P of 8 bits", "want"},
	{"dX in 8 bits", "want"},
	{"hidden S is -Inf", "NaN"},
	{"hidden V in dP", "NaN"},
	{"hidden K in dX", "NaN"},
	{"hidden K times 0", "NaN"},
	{"dQ not scaled", "dq["},
	{"dK not scaled", "dk["},
	{"dQ summed in float16", "dq["},
	{"dK summed in float16", "dk["},
	{"dV added to what is there", "dv["},
	{"only the last head of a group", "want"},
	{"only the first head of a group", "want"},
	{"rows' tail tile dropped", "want"},
	{"keys' tail tile dropped", "NaN"},
	{"first rows skipped", "want"},
	{"keys that no row sees not written", "NaN"},
	{"rows that see nothing not written", "dq["},
	{"dQ with Q's strides", ""},
	{"dK with K's strides", ""},
	{"dV with V's strides", ""},
	{"differs from call to call", "not deterministic"},
	{"dO scaled in place", "input do was changed"},
	{"LSE turned into base 2 in place", "input lse was changed"},
	{"dQ padded to the tile", "dq was written outside"},
	{"dK padded to the tile", "dk was written outside"},
	{"dV one element past each row", "dv was written outside"},
	{"causal off by one", "want"},
	{"causal one too few", "want"},
	{"top-left and bottom-right swapped", "want"},
	{"causal ignored", "want"},
	{"group: head modulo key heads", "want"},
	{"K read with V's strides", ""},
	{"V read with K's strides", ""},
	{"scale ignored", "want"},
	{"sign of scale lost", "want"},
	{"S in float16", "want"},
}

var bwdFeatureMistakes = []mistake{
	{"Delta of head_dim columns", "want"},
	{"Delta dropped out", "want"},
	{"rows in no sequence written", "dq was written outside"},
	{"keys in no sequence written", "dk was written outside"},
	{"softcap not in the gradient", "want"},
	{"softcap's slope of the score", "want"},
	{"softcap's slope without the square", "want"},
	{"dropout not in dV", "dv["},
	{"dropout not in dP", "want"},
	{"dV unscaled by dropout", "dv["},
	{"dbias of the first batch", "dbias["},
	{"dbias of the first head", "dbias["},
	{"dbias of the first row", "dbias["},
	{"dbias scaled", "dbias["},
	{"dbias with the slope of softcap", "dbias["},
	{"dbias and dsinks not cleared", "NaN"},
	{"dsinks negated", "dsinks["},
	{"dsinks without the weight", "dsinks["},
	{"dsinks without rows that see nothing", "dsinks["},
	{"dsinks of the first batch", "dsinks["},
	{"-Inf - -Inf in the sink", "NaN"},
	{"window without the shift", "want"},
	{"window: one key more to the left", "want"},
	{"softcap ignored", "want"},
	{"ALiBi without the shift", "want"},
	{"bias of the first row", "want"},
	{"key mask inverted", "want"},
	{"shift of the longest sequence", "want"},
	{"dropout: row and key exchanged", "want"},
	{"dropout: batch ignored", "want"},
}

// TestBackwardMutations says that each mistake fails the suite, and also the few narrow cases that
// stand for all, and that the kernel without a mistake passes.
func TestBackwardMutations(t *testing.T) {
	if raceDetector {
		t.Skip("minutes under the race detector, and the kernel is sequential")
	}
	s := NewBackwardSuite(Short, BackwardReference, PlainGradients).Where(few)
	t.Run("none", func(t *testing.T) {
		TestBackward(t, s.Where(func(c *Case) bool { return c.FLOPs() < 5e6 }), &bwdKernel{})
	})
	s = s.Where(func(c *Case) bool { return narrow(c, 24, 16) })
	cases := slices.DeleteFunc(StandIns(s.Cases), func(c *Case) bool { return c.FLOPs() >= 5e6 })
	slices.SortStableFunc(cases, func(a, b *Case) int { return cmp.Compare(a.FLOPs(), b.FLOPs()) })
	check := func(c *Case, m string) error {
		_, err := s.Check(c, &bwdKernel{kernel: kernel{mistake: m}})
		return err
	}
	requireCaught(t, bwdMistakes, cases, check)
	requireCaught(t, bwdFeatureMistakes, withFeatures(cases), check)
}
