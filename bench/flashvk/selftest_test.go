package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSelftest(t *testing.T) {
	_, dev := concurrent(t)
	code, stdout, stderr := flashvk("selftest", dev, "--impl=scalar", "--budget=2s", "--format=markdown")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "| path | pass | type | verdict | right |")
	require.Regexp(t, `\| scalar \| forward \| float32 \| (pass|not run) \|`, stdout)
	require.Contains(t, stdout, "| fma f32 | ")
	require.NotContains(t, stdout, "WRONG")
	require.Regexp(t, `\n0 wrong of \d+ cases, no time for \d+\n$`, stdout)
}

// TestRandomBudget says that random problems end at --budget, how the last line counts them, and
// that a record adds up the seeds.
func TestRandomBudget(t *testing.T) {
	_, dev := concurrent(t)
	args := []string{"selftest", dev, "--random=1000000000", "--kernel=optim", "--budget=500ms", "--record", filepath.Join(t.TempDir(), "r.json")}
	total := 0
	for seed := range 2 {
		code, stdout, stderr := flashvk(append(args, "--seed", strconv.Itoa(seed))...)
		require.Zero(t, code, stderr)
		last := regexp.MustCompile(`(?m)^0 wrong of (\d+) random problems of seed \d, .* kernels compiled in .*\n\z`).FindStringSubmatch(stdout)
		require.NotNil(t, last, stdout)
		n, err := strconv.Atoi(last[1])
		require.NoError(t, err)
		require.Positive(t, n)
		total += n
		require.Contains(t, stdout, fmt.Sprintf("the record: 0 wrong of %d random problems of %d seeds\n", total, seed+1))
	}
}

// TestRandomUsage has flags that make no sense together.
func TestRandomUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--random=0"}, "--random 0 is not positive"},
		{[]string{"--random=1", "--problem=norm:{}"}, "--random and --problem exclude each other"},
		{[]string{"--random=1", "--workers=-1"}, "--workers -1 is negative"},
		{[]string{"--random=1", "--workers=100000000"}, "--workers 100000000 is more than 1024"},
		{[]string{"--random=1", "--shrink=-1s"}, "--shrink -1s is negative"},
		{[]string{"--random=1", "--failures=0"}, "--failures 0 is not positive"},
		{[]string{"--shrink=1s"}, "--shrink is for --random only"},
		{[]string{"--seed=1"}, "--seed is for --random only"},
		{[]string{"--problem=nothing:{}"}, `--problem: trial: no kernel "nothing"`},
	} {
		code, _, stderr := flashvk(append([]string{"selftest"}, c.args...)...)
		require.Equal(t, 2, code, c.args)
		require.Contains(t, stderr, c.want)
	}
}
