package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench"
)

// TestBenchFlags says what the flags come to, given the defaults of a CPU
// device: batch 1, heads 4, kv-heads 2, seqlen 256, headdim 64.
func TestBenchFlags(t *testing.T) {
	for _, c := range []struct{ args, problem, paths, protocol string }{
		{"", "dtype=float16/batch=1/heads=4/kv_heads=2/seq_q=256/seq_kv=256/head_dim=64/causal=false",
			"[coopmat2 coopmat scalar unfused]", "10 0 0"},
		{"--count 20 --warmup 50 --iters 100", "dtype=float16/batch=1/heads=4/kv_heads=2/seq_q=256/seq_kv=256/head_dim=64/causal=false",
			"[coopmat2 coopmat scalar unfused]", "20 50 100"},
		{"--causal", "dtype=float16/batch=1/heads=4/kv_heads=2/seq_q=256/seq_kv=256/head_dim=64/causal=true",
			"[coopmat2 coopmat scalar unfused]", "10 0 0"},
		{"--causal --causal-align top-left --impl scalar,auto", "dtype=float16/batch=1/heads=4/kv_heads=2/seq_q=256/seq_kv=256/head_dim=64/causal=top-left",
			"[scalar auto]", "10 0 0"},
		{"--heads 8 --seqlen 100 --dtype bf16", "dtype=bfloat16/batch=1/heads=8/kv_heads=8/seq_q=100/seq_kv=100/head_dim=64/causal=false",
			"[coopmat2 coopmat scalar unfused]", "10 0 0"},
		{"--kv-heads 1 --seqlen-kv 1000 --batch 3 --headdim 72", "dtype=float16/batch=3/heads=4/kv_heads=1/seq_q=256/seq_kv=1000/head_dim=72/causal=false",
			"[coopmat2 coopmat scalar unfused]", "10 0 0"},
		{"--seqlen-kv 1000 --seqlen 1 --kv-heads 2 --heads 6", "dtype=float16/batch=1/heads=6/kv_heads=2/seq_q=1/seq_kv=1000/head_dim=64/causal=false",
			"[coopmat2 coopmat scalar unfused]", "10 0 0"},
	} {
		b := parseBench(t, c.args)
		if p := problemOf(t, b, true); p.String() != c.problem {
			t.Errorf("%s: %v\nwant %s", c.args, p, c.problem)
		}
		if got := fmt.Sprint(b.paths(false)); got != c.paths {
			t.Errorf("%s: paths %s, want %s", c.args, got, c.paths)
		}
		pr := b.measure.protocol(true)
		if got := fmt.Sprint(pr.Samples, pr.Warmup, pr.Iters); got != c.protocol {
			t.Errorf("%s: samples, warm-up, iterations %s, want %s", c.args, got, c.protocol)
		}
	}
	many := parseBench(t, "--seqlen 16..64x2 --headdim 64,128")
	ops, _, err := many.ops(true)
	require.NoError(t, err)
	require.Len(t, ops, 6)
	require.Equal(t, "[auto coopmat2 coopmat scalar unfused]", fmt.Sprint(many.paths(true)))
	if p := problemOf(t, parseBench(t, "--scale=0.25"), false); p.Scale != 0.25 || p.SeqQ != 4096 || p.NumHeads != 16 {
		t.Errorf("scale on a GPU: %+v", p)
	}
}

// problemOf returns the problem of a command line.
func problemOf(t *testing.T, b *benchKernel, cpu bool) attention.Problem {
	t.Helper()
	ops, suite, err := b.ops(cpu)
	require.NoError(t, err)
	require.Nil(t, suite)
	return ops[0].(*bench.AttentionOp).Problem()
}

// TestVerdict says which reports are failures.
func TestVerdict(t *testing.T) {
	ok := bench.Result{Impl: "scalar", Status: bench.StatusOK}
	wrong := bench.Result{Impl: "coopmat", Status: bench.StatusFailed, Reason: "off"}
	no := bench.Result{Impl: "coopmat2", Status: bench.StatusUnsupported, Reason: "lacking"}
	peer := bench.Result{Impl: "torch:flash", Peer: true, Status: bench.StatusOK}
	gone := bench.Result{Impl: "torch", Peer: true, Status: bench.StatusNoAnswer, Reason: "gone"}
	for _, c := range []struct {
		named   bool
		results []bench.Result
		want    string
	}{
		{false, []bench.Result{ok}, ""},
		{false, []bench.Result{no, ok}, ""}, // the default list asks for nothing in particular
		{true, []bench.Result{no, ok}, "coopmat2 is not supported: lacking"},
		{false, []bench.Result{no}, "coopmat2 is not supported: lacking"},
		{false, []bench.Result{no, peer}, "coopmat2 is not supported: lacking"},
		{false, []bench.Result{no, wrong, ok}, "coopmat is wrong: off"},
		{true, []bench.Result{ok, gone}, ""},
	} {
		got := ""
		if err := verdict(c.results, c.named); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}

// TestBenchSuite runs a suite in its small form.
func TestBenchSuite(t *testing.T) {
	_, dev := device(t)
	code, stdout, stderr := flashvk("bench", "attention", dev, "--suite=decoder", "--small", "--impl=scalar,unfused", "--count=2", "--iters=2", "--format=markdown")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "- **suite** decoder: ")
	require.Regexp(t, `\n\| batch \| heads \| seq\\_q \| head\\_dim \| dtype \| causal \| scalar \| unfused \| time/scalar \| rate \|`, stdout)
	require.Contains(t, stdout, "\n| 1 | 2 | 256 | 64 | float16 | false | ")
	require.Contains(t, stdout, "\n| 1 | 2 | 256 | 64 | float16 | true | ")
	require.Equal(t, 2, strings.Count(stdout, "| pass | scalar "))
}

// TestSuiteFlags says that the small form is for CPU devices and for --small.
func TestSuiteFlags(t *testing.T) {
	for _, c := range []struct {
		args  string
		cpu   bool
		first string
	}{
		{"--suite throughput", false, "dtype=float16/batch=32/heads=32/kv_heads=32/seq_q=512/seq_kv=512/head_dim=64/causal=false"},
		{"--suite throughput", true, "dtype=float16/batch=1/heads=4/kv_heads=4/seq_q=8/seq_kv=8/head_dim=64/causal=false"},
		{"--suite throughput --small --dtype bf16", false, "dtype=bfloat16/batch=1/heads=4/kv_heads=4/seq_q=8/seq_kv=8/head_dim=64/causal=false"},
		{"--suite throughput --small=false", true, "dtype=float16/batch=32/heads=32/kv_heads=32/seq_q=512/seq_kv=512/head_dim=64/causal=false"},
	} {
		b := parseBench(t, c.args)
		ops, suite, err := b.ops(c.cpu)
		require.NoError(t, err, c.args)
		require.Equal(t, c.first, ops[0].(fmt.Stringer).String(), c.args)
		require.Equal(t, "throughput", suite.Name)
		require.Equal(t, "[auto coopmat2 coopmat scalar unfused]", fmt.Sprint(b.paths(true)))
	}
}

// parseBench returns the flags of a command line.
func parseBench(t *testing.T, args string) *benchKernel {
	t.Helper()
	b := &benchKernel{kernelProblem: newKernelProblem(find("attention"))}
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	b.add(f)
	require.NoError(t, f.Parse(strings.Fields(args)))
	return b
}
