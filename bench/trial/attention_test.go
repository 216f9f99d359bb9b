package trial

import (
	"context"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/vk/vktest"
)

var (
	attentionFirst = flag.Int("attention-first", 0, "number of the first problem of TestAttentionProblems")
	attentionCount = flag.Int("attention-count", 0, "how many problems TestAttentionProblems checks, 0 for a few")
	attentionSoft  = flag.Bool("attention-soft", true, "problems of TestAttentionProblems are for a software driver")
	attentionImpl  = flag.String("attention-impl", "", "path of TestAttentionProblems, all if empty")
)

// drawAttentionNumber draws problem n of a seed, eight in a family.
func drawAttentionNumber(n int, s Space) *attentionProblem {
	family := rand.New(rand.NewPCG(1, uint64(n/8)))
	return drawAttention(family, rand.New(rand.NewPCG(2, uint64(n))), s).(*attentionProblem)
}

// TestAttentionProblems checks problems on the device.
func TestAttentionProblems(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	s := Space{Soft: *attentionSoft, Work: 2e7}
	if *attentionImpl != "" {
		s.Impls = []string{*attentionImpl}
	}
	count := *attentionCount
	if count == 0 {
		count = 24
	}
	refused := 0
	for n := *attentionFirst; n < *attentionFirst+count; n++ {
		p := drawAttentionNumber(n, s)
		if err := p.Supports(d.Caps()); err != nil {
			refused++
			continue
		}
		start := time.Now()
		err := p.Check(context.Background(), newTestRunner(t, d))
		text, _ := json.Marshal(p)
		if took := time.Since(start); took > 3*time.Second {
			t.Logf("%d took %v: %v", n, took, p)
		}
		if err != nil {
			t.Errorf("%d: %v\n%v\n%s", n, err, p, text)
		}
	}
	t.Logf("%d of %d refused", refused, count)
	require.Less(t, refused, count)
}
