package attntest

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// A mistake is one that a kernel of the tests can make, with a part of the suite's message about
// it.
type mistake struct{ name, message string }

// mistakes are kernel's mistakes in plain problems, featureMistakes its other ones.
var mistakes = []mistake{
	{"causal off by one", "want"},
	{"causal one too few", "want"},
	{"top-left and bottom-right swapped", "want"},
	{"causal ignored", "want"},
	{"O not rescaled", "want"},
	{"l not rescaled", "want"},
	{"rescaled by the last tile's maximum", "want"},
	{"no maximum subtracted", "NaN"},
	{"keys' tail tile dropped", "want"},
	{"keys' tail not masked", "NaN"},
	{"tail key of the first tile dropped", "want"},
	{"garbage in the maximum", "not deterministic"},
	{"rows' tail tile dropped", "NaN"},
	{"stale row", "NaN"},
	{"head dim tail dropped", "NaN"},
	{"group: head modulo key heads", "want"},
	{"group: ratio inverted", "want"},
	{"group ignored", ""}, // reads beyond K: panics in Go, so it is clamped
	{"batch ignored in V", "want"},
	{"log2 for ln in LSE", "LSE["},
	{"LSE without the maximum", "LSE["},
	{"LSE without scale", "LSE["},
	{"LSE finite in rows that see nothing", "LSE["},
	{"rows that see nothing are the mean of V", "want"},
	{"Q scaled in place", "input q was changed"},
	{"V cleared after use", "input v was changed"},
	{"one element past each row", "O was written outside"},
	{"one row past the end", "O was written outside"},
	{"one element before the start", "O was written outside"},
	{"LSE padded to the tile", "LSE was written outside"},
	{"K read with V's strides", "want"},
	{"V read with K's strides", "want"},
	{"O written with Q's strides", "O"},
	{"offset of K ignored", "NaN"},
	{"scale ignored", "want"},
	{"sign of scale lost", "want"},
	{"maximum of unscaled scores", "NaN"},
	{"S in float16", "want"},
	{"P of 8 bits", "want"},
	{"O summed in float16", "want"},
	{"l summed in float16", "want"},
	{"lazy rescale against the last tile", "want"},
	{"differs from call to call", "not deterministic"},
}

var featureMistakes = []mistake{
	{"window: one key more to the left", "want"},
	{"window: one key fewer to the right", "want"},
	{"window: open to the right", "want"},
	{"window without the shift", "want"},
	{"window: first tile skipped", "want"},
	{"window: rows after the keys see the last", "want"},
	{"hidden V times a weight of 0", "NaN"},
	{"hidden K in the score", "NaN"},
	{"softcap ignored", "want"},
	{"softcap before scale", "want"},
	{"softcap after bias", "want"},
	{"softcap without its factor", "want"},
	{"ALiBi ignored", "want"},
	{"ALiBi without the shift", "want"},
	{"ALiBi without absolute value", "want"},
	{"ALiBi of the key head", "want"},
	{"ALiBi of the first batch", "want"},
	{"bias ignored", "want"},
	{"bias scaled", "want"},
	{"bias of the first row", "want"},
	{"bias of the first head", "want"},
	{"bias of the first batch", "want"},
	{"bias of the key head", "want"},
	{"bias with the strides of S", "want"},
	{"key mask ignored", "NaN"},
	{"key mask inverted", "want"},
	{"key mask of the first batch", "want"},
	{"sink ignored", "want"},
	{"sink not in LSE", "LSE["},
	{"sink scaled", "want"},
	{"sink of the key head", "want"},
	{"sink lost where no key is seen", "LSE["},
	{"shift of the longest sequence", "want"},
	{"keys of the longest sequence", "want"},
	{"rows of the longest sequence", ""},
	{"queries where the keys are", ""},
	{"LSE not packed", ""},
	{"O as wide as Q", ""},
	{"dropout ignored", "want"},
	{"dropout not scaled", "want"},
	{"dropout in the sum", "want"},
	{"dropout: row and key exchanged", "want"},
	{"dropout: batch ignored", "want"},
	{"dropout: one word for four keys", "want"},
	{"dropout: offset of 32 bits", "want"},
	{"dropout: seed of 32 bits", "want"},
	{"dropout: key of the tile", "want"},
}

// few reports whether a case is one that every path runs, however long its kernels take to compile.
func few(c *Case) bool {
	return c.Problem.Plain() || len(c.Problem.Features()) >= Several && c.Problem.DType == dtype.Float16
}

// narrow reports whether a case has features, or heads that compile soon: of at most `most`
// columns, and in float32 of `fewer` fewer.
func narrow(c *Case, most, fewer int) bool {
	if c.Problem.DType == dtype.Float32 {
		most -= fewer
	}
	return !c.Problem.Plain() || max(c.Problem.HeadDim, c.Problem.ValueHeadDim()) <= most
}

// TestMutations says that each mistake fails the suite, and also the few narrow cases that stand
// for all, and that the kernel without a mistake passes.
func TestMutations(t *testing.T) {
	if raceDetector {
		t.Skip("minutes under the race detector, and the kernel is sequential")
	}
	s := NewSuite(Short, Reference, TwicePlain).Where(few)
	t.Run("none", func(t *testing.T) {
		TestForward(t, s.Where(func(c *Case) bool { return c.FLOPs() < 2e7 }), &kernel{})
	})
	s = s.Where(func(c *Case) bool { return narrow(c, 40, 16) })
	cases := slices.DeleteFunc(StandIns(s.Cases), func(c *Case) bool { return c.FLOPs() >= 2e7 })
	slices.SortStableFunc(cases, func(a, b *Case) int { return cmp.Compare(a.FLOPs(), b.FLOPs()) })
	check := func(c *Case, m string) error {
		_, err := s.Check(c, &kernel{mistake: m})
		return err
	}
	requireCaught(t, mistakes, cases, check)
	requireCaught(t, featureMistakes, withFeatures(cases), check)
}

func withFeatures(cases []*Case) []*Case {
	return slices.DeleteFunc(slices.Clone(cases), func(c *Case) bool { return c.Problem.Plain() })
}

// requireCaught wants an error of check for each mistake, in one case at least.
func requireCaught(t *testing.T, mistakes []mistake, cases []*Case, check func(c *Case, mistake string) error) {
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range cases {
				if err := check(c, m.name); err != nil {
					t.Logf("%s: %v", c.Name, err)
					require.ErrorContains(t, err, m.message)
					return
				}
			}
			t.Error("no case catches it")
		})
	}
}
