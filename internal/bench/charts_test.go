package bench

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzRecords says that no CSV file makes plot panic or hang, and that what is drawn is a
// drawing.
func FuzzRecords(f *testing.F) {
	var b strings.Builder
	require.NoError(f, sampleReport().Write(&b, CSV))
	f.Add(b.String())
	f.Add(strings.ReplaceAll(b.String(), "104500", "5e-324"))
	f.Add(strings.ReplaceAll(b.String(), ",ok,", ",failed,"))
	f.Add("gpu,driver,kernel,impl,status,reason,seq_q,flops,device_ns\ng,d,k,i,ok,,1,1,1e6\ng,d,k,i,ok,,2,1,1e6\ng,d,k,i,ok,,3,1e308,1e-308\n")
	f.Fuzz(func(t *testing.T, text string) {
		x, err := ReadRecords(strings.NewReader(text))
		if err != nil {
			return
		}
		drawings, err := Plots(x, "")
		if err != nil && strings.ContainsAny(err.Error(), "\n\r\x1b") {
			t.Errorf("%q is no line", err)
		}
		for i, d := range drawings {
			if err := d.SVG(io.Discard); err == nil && i == 3 {
				break // the others are of the same kinds
			}
		}
	})
}
