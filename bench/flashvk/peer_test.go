package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script returns a command that runs shell text.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "peer.sh")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return "sh " + path
}

// TestBenchPeer says that a peer gets our inputs, that its output is checked,
// that its times stand beside ours, and that nothing it does is fatal.
func TestBenchPeer(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	in, right, wrong := filepath.Join(dir, "in"), filepath.Join(dir, "right"), filepath.Join(dir, "wrong")
	answer := func(name, output string) string {
		return `echo '{"name": "` + name + `", "samples_ns": [1e15, 1e15], "iters": 7, "sets": 2, "output": "` + output + `"}'` + "\n"
	}
	// The first run keeps the inputs, from which flashvk itself makes an output.
	keep := script(t, `sed 's/.*"input":"\([^"]*\)".*/\1/' | xargs -I X cp X `+in+"\n"+answer("keep", ""))
	code, stdout, stderr := flashvk(small(dev, "--wide", "--impl=scalar", "--peer", "first="+keep)...)
	require.Zero(t, code, stderr)
	require.Regexp(t, `\nfirst:keep +1000000 s `, stdout)
	code, _, stderr = flashvk("run", "attention", dev, "--impl=unfused", "--causal", "--in", in, "--out", right)
	require.Zero(t, code, stderr)
	code, _, stderr = flashvk("run", "attention", dev, "--impl=unfused", "--in", in, "--out", wrong)
	require.Zero(t, code, stderr)

	peers := script(t, `echo '{"about": "a fake"}'`+"\n"+answer("right", right)+answer("wrong", wrong)+answer("none", "")+
		`echo '{"name": "old", "error": "too old"}'`+"\n"+answer("lost", "/nowhere/o")+"exit 4\n")
	code, stdout, stderr = flashvk(small(dev, "--wide", "--impl=scalar", "--peer", "fake="+peers, "--peer=gone=false")...)
	require.Zero(t, code, "a peer's failure is not ours: %s", stderr)
	require.Regexp(t, `\nscalar .* 1\.00x .* pass   scalar`, stdout)
	require.Regexp(t, `\nfake:right .*x .* pass   a fake\n`, stdout)
	require.Regexp(t, `\nfake:wrong .* FAIL   a fake\n`, stdout)
	require.Regexp(t, `\nfake:none .* -  -      a fake\n`, strings.ReplaceAll(stdout, "       -", "  -"))
	require.Regexp(t, `\nfake:wrong has a wrong output: O\[0,`, stdout)
	require.Contains(t, stdout, "\nfake:old has no times: too old\n")
	require.Contains(t, stdout, "\nfake:lost has a wrong output: safetensors: /nowhere/o: no such file")
	require.Contains(t, stdout, "\nfake has no times: exit status 4\n")
	require.Contains(t, stdout, "\ngone has no times: exit status 1\n")

	// The backward pass: the inputs have dO, the output gradients.
	code, _, stderr = flashvk(small(dev, "--wide", "--impl=scalar", "--backward", "--peer", "first="+keep)...)
	require.Zero(t, code, stderr)
	code, _, stderr = flashvk("run", "attention", dev, "--impl=scalar", "--backward", "--causal", "--in", in, "--out", right)
	require.Zero(t, code, stderr)
	gradients := script(t, answer("right", right)+answer("wrong", wrong))
	code, stdout, stderr = flashvk(small(dev, "--wide", "--impl=scalar", "--backward", "--peer", "fake="+gradients)...)
	require.Zero(t, code, stderr)
	require.Regexp(t, `\nfake:right .*x .* pass`, stdout)
	require.Contains(t, stdout, `fake:wrong has a wrong output: its output has none of the tensors ["dq" "dk" "dv"]`)

	code, stdout, _ = flashvk(small(dev, "--wide", "--impl=scalar", "--peer", "fake="+peers, "--format=benchfmt")...)
	require.Zero(t, code)
	require.Equal(t, 2, strings.Count(stdout, "\nBenchmarkAttentionFwd/impl=fake:right/dtype=float16/"))
	require.NotContains(t, stdout, "impl=fake:old")
	code, stdout, _ = flashvk("bench", "attention", dev, "--suite=latency", "--small", "--impl=scalar", "--count=1", "--iters=1", "--peer", "fake="+answerOnly(t), "--format=markdown")
	require.Zero(t, code)
	require.Contains(t, stdout, "| scalar | fake:x | time/scalar |")
	require.Regexp(t, `\| 128 \| 4 \| 2 \| [0-9.]+ [mµ]s \| 250.0 µs \| [0-9.]+x \|`, stdout)
}

// answerOnly returns a peer that always takes a millisecond.
func answerOnly(t *testing.T) string {
	return script(t, `echo '{"name": "x", "samples_ns": [1e6]}'`)
}

// TestBenchBothPeer: beside a peer --both has the passes one by one, and their sum with its
// error.
func TestBenchBothPeer(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	peer := script(t, `read request
pass=$(echo "$request" | sed 's/.*"pass":"\([a-z]*\)".*/\1/')
case $pass in forward) ns=1e9;; *) ns=3e9;; esac
echo '{"about": "'$pass'"}'
echo '{"name": "x", "samples_ns": ['$ns', '$ns']}'
[ $pass = forward ] && echo '{"name": "half", "samples_ns": [1e9]}'
if [ -e `+dir+`/$pass ]; then echo '{"name": "checked", "samples_ns": [1e9], "output": "`+dir+`/'$pass'"}'; fi
echo "$request" | sed 's/.*"input":"\([^"]*\)".*/\1/' | xargs -I X cp X `+dir+`/in.$pass
exit 0
`)
	args := small(dev, "--wide", "--impl=scalar", "--both", "--peer", "p="+peer)
	code, _, stderr := flashvk(args...)
	require.Zero(t, code, stderr)
	for _, pass := range []string{"forward", "backward"} {
		more := []string{"run", "attention", dev, "--impl=scalar", "--causal", "--in", filepath.Join(dir, "in."+pass), "--out", filepath.Join(dir, pass)}
		if pass == "backward" {
			more = append(more, "--backward")
		}
		code, _, stderr = flashvk(more...)
		require.Zero(t, code, stderr)
	}
	code, stdout, stderr := flashvk(args...)
	require.Zero(t, code, stderr)
	sections := strings.Split(stdout, "\nproblem  ")
	require.Len(t, sections, 4)
	for i, want := range []struct{ title, time string }{{"attention forward, ", "1.000 s"}, {"attention backward, ", "3.000 s"}, {"attention forward and backward, ", "4.000 s"}} {
		section := sections[i+1]
		require.True(t, strings.HasPrefix(section, want.title), section)
		require.Regexp(t, `\nscalar .* 1\.00x .* pass `, section)
		require.Regexp(t, `\np:x +`+want.time+` .*[0-9]x `, section)
		require.Regexp(t, `\np:checked +[12]\.000 s .*[0-9]x .* [0-9.]+e-[0-9]+ .* pass `, section)
	}
	require.Contains(t, sections[3], "\np:half has no times: it did not measure the backward pass\n")

	code, stdout, stderr = flashvk(append(args, "--format=csv")...)
	require.Zero(t, code, stderr)
	for _, kernel := range []string{",attention_fwd,p:x,true,", ",attention_bwd,p:x,true,", ",attention_fwd_bwd,p:x,true,"} {
		require.Contains(t, stdout, kernel)
	}
	code, stdout, stderr = flashvk("bench", "norm", dev, "--rows=4,8", "--cols=32", "--count=1", "--iters=1", "--both", "--wide", "--peer", "p="+peer)
	require.Zero(t, code, stderr)
	require.Regexp(t, `\nrows +pass +auto`, stdout)
	require.Equal(t, 6, len(regexp.MustCompile(`(?m)^ +[48]  (forward|backward|forward and backward) +[0-9.]+ `).FindAllString(stdout, -1)), stdout)
}

// TestBenchClose: what --atol and --rtol demand is demanded, of peers, too, and our own limits
// stay.
func TestBenchClose(t *testing.T) {
	_, dev := device(t)
	for _, pass := range []string{"", "--backward"} {
		args := small(dev, "--impl=scalar", "--format=csv")
		if pass != "" {
			args = append(args, pass)
		}
		code, _, stderr := flashvk(append(args, "--atol=0.01", "--rtol=0.01")...)
		require.Zero(t, code, stderr)
		code, stdout, stderr := flashvk(append(args, "--rtol=1e-9")...)
		require.Equal(t, 1, code)
		require.Regexp(t, `scalar is wrong: (o|dq) is not close in [0-9]+ of [0-9]+ compared elements, .* atol 0 \+ rtol 1e-09 \* \|want\|`, stderr)
		require.Contains(t, stdout, ",failed,")
	}
}
