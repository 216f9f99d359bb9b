package bench

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
)

// TestReportCharts says that lengths of one problem make lines and other
// problems bars.
func TestReportCharts(t *testing.T) {
	r := sweepReport() // three lengths
	list := r.Charts()
	require.Len(t, list, 2)
	require.Equal(t, "speedup", list[0].Name)
	require.Equal(t, "rate", list[1].Name)
	require.Empty(t, list[1].Categories)

	// Another family, a rectangle, and a problem whose paths all failed.
	other := sweepReport()
	for i, seq := range []int{512, 128, 2048} {
		of := changed(sweepProblem(seq), func(p *attention.Problem) { p.Batch = 2 })
		other.Results[2*i].Subject, other.Results[2*i+1].Subject = of, of
	}
	rectangle := func(p *attention.Problem) { p.Batch, p.SeqKV, p.Causal = 3, 64, false }
	single := other.Results[0]
	single.Subject = changed(sweepProblem(512), rectangle)
	failed := single
	failed.Subject = changed(sweepProblem(512), func(p *attention.Problem) {
		rectangle(p)
		p.NumHeads = 4
	})
	failed.Status, failed.Impl = StatusFailed, "scalar"
	r.Results = append(append(r.Results, single, failed), other.Results...)
	list = r.Charts()
	var names []string
	for _, d := range list {
		names = append(names, d.Name)
	}
	require.Equal(t, []string{"speedup-1", "rate-1", "speedup-2", "rate-2", "rates"}, names)
	bars := list[4]
	require.Equal(t, []string{"B3 H2\nS512x64\nD64\nf16", "B3 H4/2\nS512x64\nD64\nf16"}, bars.Categories)
	require.Len(t, bars.Series, 1)
	require.Equal(t, []float64{0}, bars.Series[0].X)
	// 4*3*2*512*64*64 operations in 512 µs.
	require.InDelta(t, 98.304, bars.Series[0].Y[0], 1e-9)
	require.Equal(t, "GFLOP/s", bars.Y)

	r.Results = []Result{failed}
	require.Empty(t, r.Charts())
}

// TestBarsOrder says that the order of bars is that of the implementations,
// whatever the first problem lacks.
func TestBarsOrder(t *testing.T) {
	r := sweepReport()
	r.Results = r.Results[:4]
	r.Results[0].Status = StatusUnsupported
	list := r.Charts()
	require.Len(t, list, 1)
	require.Equal(t, "coopmat", list[0].Series[0].Name)
	require.Equal(t, "unfused", list[0].Series[1].Name)
}

// TestPlots says that the CSV of a report is drawn as the report draws it, with latencies, and
// that errors name lines of the file.
func TestPlots(t *testing.T) {
	r := sweepReport()
	other := sweepReport()
	for i, seq := range []int{512, 128, 2048} {
		of := changed(sweepProblem(seq), func(p *attention.Problem) { p.Batch = 2 })
		other.Results[2*i].Subject, other.Results[2*i+1].Subject = of, of
	}
	single := other.Results[0]
	single.Subject = changed(sweepProblem(512), func(p *attention.Problem) { p.Batch, p.SeqKV, p.Causal = 3, 64, false })
	r.Results = append(append(r.Results, single), other.Results...)
	var b bytes.Buffer
	require.NoError(t, r.Write(&b, CSV))
	plots := func(text string) ([]Drawing, error) {
		x, err := ReadRecords(strings.NewReader(text))
		require.NoError(t, err)
		return Plots(x, "")
	}
	list, err := plots(b.String())
	require.NoError(t, err)
	var names []string
	of := map[string]Drawing{}
	for _, d := range list {
		names, of[d.Name] = append(names, d.Name), d
	}
	require.Equal(t, []string{"latency-1", "speedup-1", "rate-1", "latency-2", "speedup-2", "rate-2", "rates"}, names)
	charts := r.Charts()
	require.Len(t, charts, 5)
	for _, d := range charts {
		require.Equal(t, d, of[d.Name])
	}

	lines, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	bad := func(line int, column, value string) string {
		changed := slices.Clone(lines)
		changed[line-1] = slices.Clone(lines[line-1])
		changed[line-1][slices.Index(lines[0], column)] = value
		var text strings.Builder
		require.NoError(t, csv.NewWriter(&text).WriteAll(changed))
		return text.String()
	}
	last := len(lines) - 1 // that has a time
	for _, c := range []struct {
		text, want string
	}{
		{bad(last, "device_ns", "x"), fmt.Sprintf(`line %d: device_ns="x" is not a number`, last)},
		{bad(8, "device_ns", "-1"), `line 8: device_ns=-1 is not positive`}, // a bar
		{bad(last, "gpu", "other"), fmt.Sprintf(`and "other" in line %d: a chart is of one device`, last)},
	} {
		_, err := plots(c.text)
		require.ErrorContains(t, err, c.want, c.want)
	}
}
