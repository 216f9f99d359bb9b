package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench/trial"
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

// TestBlame tries suspects alone, and no other failures: one that is right, and one that
// cannot be tried.
func TestBlame(t *testing.T) {
	caps, _ := device(t)
	var out strings.Builder
	blame(context.Background(), &out, caps.Name, []trial.Failure{
		{Problem: "not this"},
		{Problem: `gmm:{"Call":"forward","Tokens":3,"Components":2,"LogP":true,"Loss":true}`, Suspect: true},
		{Problem: "nothing:{}", Suspect: true},
	}, time.Minute)
	require.Contains(t, out.String(), "right\n         flashvk selftest --problem 'gmm:")
	require.Contains(t, out.String(), "trial: no kernel \"nothing\"\n         flashvk selftest --problem 'nothing:{}'")
	require.NotContains(t, out.String(), "not this")
}
