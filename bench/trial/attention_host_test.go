package trial

import (
	"testing"

	"github.com/flashvk/flashvk/attention/attntest"
	"github.com/flashvk/flashvk/attention/ref"
)

// BenchmarkAttentionHost is what a problem costs the host, beside the device: the
// implementation that is checked copies what a first call has computed.
func BenchmarkAttentionHost(b *testing.B) {
	for i := range b.N {
		p := drawAttentionNumber(i, Space{Work: 1e8})
		forward, backward := attntest.Reference, attntest.BackwardReference
		if err := p.check(forward, backward); err != nil {
			b.Fatal(err)
		}
	}
	_ = ref.SampleRows[float64]
}
