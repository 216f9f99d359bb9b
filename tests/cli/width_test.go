package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestWidth says that tables fit a terminal of 100 columns, and have a line for each row with
// --wide.
func TestWidth(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	tuned := filepath.Join(dir, "t.json")
	var files []string
	for i := range 2 {
		var lines strings.Builder
		for n := range 12 {
			name := "BenchmarkAttentionFwd/impl=scalar"
			for _, key := range []string{"batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim"} {
				name += fmt.Sprintf("/%s=%d", key, 1234567+n/6)
			}
			fmt.Fprintf(&lines, "%s 5 %d ns/op\n", name, 1000+n)
		}
		files = append(files, filepath.Join(dir, fmt.Sprintf("%d.txt", i)))
		require.NoError(t, os.WriteFile(files[i], []byte(lines.String()), 0o600))
	}
	for _, c := range []struct {
		args       []string
		want, wide string // wide: texts of one line with --wide
	}{
		{small(dev), "max|Δ|", "recorded"},
		{[]string{"bench", "decode", dev, "--batch=1", "--keys=33", "--count=2"}, "tokens", "recorded"},
		{[]string{"bench", "overhead", dev, "--impl=scalar", "--count=1", "--starts"}, "cold", "submit .* cold .* runs"},
		{[]string{"bench", "train", dev, "--count=1", "--stages"}, "stage", "impl +step .* rate .* check"},
		{[]string{"bench", "compare", files[0], files[1]}, "change", "batch=1234568/.*head_dim=1234568 .* 6, 6"},
		{[]string{"profile", "attention", dev, "--impl=unfused", "--backward", "--batch=1", "--heads=1", "--seqlen=9", "--headdim=8", "--count=1"}, "workgroups", "kernel .* begin .* of copy .* fits"},
		{tuneArgs(dev, tuned, "--seqlen=32", "--budget=100ms"), "configuration", "registers .* code .* max"},
		{[]string{"tune", "show", dev, "--tuning", tuned}, "problem", "kernel .* problem .* configuration .* time"},
		{[]string{"devices"}, "subgroup", ""},
	} {
		code, stdout, stderr := flashvk(t, c.args...)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, c.want, c.args)
		for line := range strings.SplitSeq(stdout, "\n") {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 100, "%s: %s", c.args, line)
		}
		if c.wide != "" {
			require.NotRegexp(t, c.wide, stdout)
			code, stdout, stderr = flashvk(t, append(c.args, "--wide")...)
			require.Zero(t, code, stderr)
			require.Regexp(t, c.wide, stdout)
		}
	}
}
