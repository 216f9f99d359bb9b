package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/perf/benchfmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestTuneFlags says which problems the flags come to, given the defaults of a
// CPU device.
func TestTuneFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string // dtype, seq_q x seq_kv, head_dim, causal; or one error
	}{
		{"", []string{"float16 256x256 64 false", "float16 256x256 64 true"}},
		{"--causal", []string{"float16 256x256 64 true"}},
		{"--causal=false --headdim 64,80", []string{"float16 256x256 64 false", "float16 256x256 80 false"}},
		{"--causal=both --seqlen 512,64 --dtype bf16", []string{"bfloat16 512x512 64 false", "bfloat16 512x512 64 true", "bfloat16 64x64 64 false", "bfloat16 64x64 64 true"}},
		{"--causal=false --dtype float32,float16 --seqlen 1 --seqlen-kv 100", []string{"float32 1x100 64 false", "float16 1x100 64 false"}},
		{"--heads 6 --kv-heads 4", []string{"attention: num_heads=6 is not a multiple of num_kv_heads=4"}},
		{"--headdim 64,12", []string{"attention: head_dim=12 is not a multiple of 8"}},
	} {
		k, _ := kernels.Find("attention")
		x := tuneKernel{kernelProblem: newKernelProblem(k)}
		x.unless = k.Tune.Unless
		f := pflag.NewFlagSet("test", pflag.ContinueOnError)
		x.addAll(f)
		if err := f.Parse(strings.Fields(c.args)); err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		var got []string
		list, err := x.tunables(&vk.Caps{Type: vk.CPU})
		for _, one := range list {
			p := one.Op.(*bench.AttentionOp).Problem()
			got = append(got, fmt.Sprintf("%v %dx%d %d %v", p.DType, p.SeqQ, p.SeqKV, p.HeadDim, p.Causal))
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
}

// kernelNames lists the commands of kernels.
func kernelNames() string {
	var list []string
	for _, k := range kernels.All() {
		list = append(list, k.Name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// TestTuneErrors has the mistakes that show without a device.
func TestTuneErrors(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"tune", "tune: a command is missing: " + kernelNames() + ", show; see flashvk tune --help"},
		{"tune attention x", `tune attention: argument "x" is not expected`},
		{"tune attention --impl auto", `"auto" is not one of coopmat2, coopmat, scalar, unfused`},
		{"tune attention --impl scalar,scalar", `"scalar" occurs twice`},
		{"tune attention --headdim 64,64", `invalid argument "64,64" for "--headdim" flag: "64" occurs twice`},
		{"tune attention --headdim 64,x", `"x" is not an integer`},
		{"tune attention --headdim 264", "attention: head_dim=264 is larger than 256"},
		{"tune attention --dtype float8", `invalid argument "float8" for "--dtype" flag: not one of float16, bfloat16, float32`},
		{"tune attention --causal=maybe", "not true or false"},
		{"tune attention --format csv", `invalid argument "csv" for "--format" flag: not one of table, markdown, benchfmt`},
		{"tune attention --budget 0s", "--budget 0s is not positive"},
		{"tune attention --out=", "--out is empty"},
		{"tune attention --window 5,0", "the table has no rows for features"},
		{"tune gemm x", `tune gemm: argument "x" is not expected`},
		{"tune gemm --impl auto", `"auto" is not one of coopmat, scalar`},
		{"tune gemm --impl scalar,scalar", `"scalar" occurs twice`},
		{"tune gemm --m -1", "gemm: "},
		{"tune gemm --budget 0s", "--budget 0s is not positive"},
		{"tune gemm --format json", `invalid argument "json" for "--format" flag: not one of table, markdown, benchfmt`},
		{"tune gemm --suite training --m 4", "--suite training and --m contradict each other"},
		{"tune gemm --group 4x5x6", "tune gemm: bfloat16: group 4x5x6, nn has no configurations to choose from"},
		{"tune gmm --tokens 4", "tune gmm: there is nothing to choose from: its workgroups are of one size on every device"},
		{"tune optim", "tune optim: there is nothing to choose from: its pieces of 4096 elements are the same on every device"},
		{"tune show --format csv", `invalid argument "csv" for "--format" flag: not one of table, markdown`},
		{"tune norm --impl auto", "unknown flag: --impl"},
		{"bench attention --tuning x --no-tuning", "--tuning x and --no-tuning contradict each other"},
		{"run attention --in x --out y --tuning x --no-tuning", "--tuning x and --no-tuning contradict each other"},
	} {
		code, stdout, stderr := flashvk(strings.Fields(c.args)...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: status %d, stdout %q, stderr %q, want %q", c.args, code, stdout, stderr, c.want)
		}
	}
}

// tiny returns a command line with a problem that takes no time.
func tiny(dev string, args ...string) []string {
	return append(args, dev, "--batch=1", "--heads=2", "--seqlen=40", "--headdim=8", "--causal")
}

// TestTune tunes into a file, uses the file, and has it ignored where it is no
// good.
func TestTune(t *testing.T) {
	caps, dev := device(t)
	path, err := kit.UserTuningPath(caps) // in the test's cache folder
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	code, stdout, stderr := flashvk(tiny(dev, "tune", "attention", "--impl=scalar", "--dtype=float32", "--budget=200ms", "--wide")...)
	if code != 0 || !strings.Contains(stderr, "flashvk: wrote "+path+"\n") {
		t.Fatalf("status %d, stderr %s, stdout\n%s", code, stderr, stdout)
	}
	for _, want := range []string{"float32: batch 1, heads 2, kv-heads 2, seqlen 40, headdim 8, causal", "configuration  ", "registers", " *  ", "FLOP/s", "candidates were not tried", "rows for attention/fwd_table.go or bwd_table.go, measured on " + caps.Name, "Shape: shape{headDim: 8, causal: true}, Config: Config{Impl: Scalar, "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
	f, err := kit.LoadTuningFile(path, caps)
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: 40, SeqKV: 40, HeadDim: 8, DType: dtype.Float32, Causal: true}
	if err != nil || f.Len() != 1 {
		t.Fatalf("%v, %d rows", err, f.Len())
	}
	want, err := attention.Choose(caps, p, kit.Forward, attention.Options{Impl: attention.Scalar, Tuning: f})
	if row := attentionSpace().Source(caps, p, want.Config, 0); err != nil || !strings.Contains(stdout, row) {
		t.Errorf("the file has %s, %v, the output\n%s", row, err, stdout)
	}

	// A configuration that the table never takes, to see who uses the file.
	mine := attention.Config{Impl: attention.Scalar, Threads: 32, ThreadsX: 8, BlockM: 8, BlockN: 8, Depth: 4, ValueRows: 4}
	if err := errors.Join(f.Add("attention", kit.Forward, p, mine, 1), f.WriteFile(path)); err != nil {
		t.Fatal(err)
	}
	command := tiny(dev, "bench", "attention", "--impl=scalar", "--dtype=float32", "--count=1", "--iters=1")
	measured := func(wantMine bool, wantErr string, more ...string) {
		t.Helper()
		code, stdout, stderr := flashvk(append(command, more...)...)
		if code != 0 || strings.Contains(stdout, mine.String()) != wantMine || !strings.Contains(stderr, wantErr) || wantErr == "" && stderr != "" {
			t.Errorf("%v: status %d, stderr %q, want %q; stdout\n%s", more, code, stderr, wantErr, stdout)
		}
	}
	measured(true, "flashvk: tuned: 1 rows of "+path)
	measured(false, "", "--no-tuning")
	other := filepath.Join(t.TempDir(), "other.json")
	if err := os.Rename(path, other); err != nil {
		t.Fatal(err)
	}
	measured(false, "")
	measured(true, "tuned: 1 rows of "+other, "--tuning="+other)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	measured(false, "flashvk: WARNING: "+path+" is ignored: kit: tuning: unexpected end of JSON input\n")
	for _, file := range []string{path, other + ".none"} { // a file that was named has to be good
		if code, _, stderr := flashvk(append(command, "--tuning="+file)...); code != 1 || !strings.Contains(stderr, "flashvk: "+file+": ") {
			t.Errorf("--tuning %s: status %d, %s", file, code, stderr)
		}
	}
}

// TestTuneCompletes says that a bad file is replaced and a good one completed.
func TestTuneCompletes(t *testing.T) {
	caps, dev := device(t)
	path, err := kit.UserTuningPath(caps)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.json")
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: 40, SeqKV: 40, HeadDim: 8, Causal: true}
	f := kit.NewTuning(caps)
	mine := attention.Config{Impl: attention.Scalar, Threads: 32, ThreadsX: 8, BlockM: 8, BlockN: 8, Depth: 4, ValueRows: 4}
	if err := errors.Join(f.Add("attention", kit.Forward, p, mine, 1), f.WriteFile(other)); err != nil {
		t.Fatal(err)
	}
	for i, args := range [][]string{{"--dtype=float32"}, {"--dtype=float16", "--out=" + other}} {
		code, stdout, stderr := flashvk(tiny(dev, append([]string{"tune", "attention", "--impl=scalar", "--budget=1ms", "--format=benchfmt"}, args...)...)...)
		if code != 0 || (i == 0) != strings.Contains(stderr, "WARNING: "+path+" is replaced") {
			t.Errorf("%v: status %d, %s", args, code, stderr)
		}
		lines := 0
		for r := benchfmt.NewReader(strings.NewReader(stdout), "stdout"); r.Scan(); {
			if x, ok := r.Result().(*benchfmt.Result); ok {
				lines++
				if name := x.Name.String(); !strings.HasPrefix(name, "AttentionFwd/impl=scalar/config=") || !strings.Contains(name, "/head_dim=8/") {
					t.Errorf("benchmark %s", name)
				}
			}
		}
		if lines == 0 {
			t.Errorf("no benchmark lines in\n%s", stdout)
		}
	}
	if f, err := kit.LoadTuningFile(other, caps); err != nil || f.Len() != 2 {
		t.Errorf("%v, %d rows, want 2", err, f.Len())
	}
}

// TestTuneKeeps says that a file that was named and is no tuning of the device is not
// replaced, and that one that cannot be written is an error before the work.
func TestTuneKeeps(t *testing.T) {
	_, dev := device(t)
	letter := filepath.Join(t.TempDir(), "letter.txt")
	if err := os.WriteFile(letter, []byte("Dear"), 0o600); err != nil {
		t.Fatal(err)
	}
	for out, want := range map[string]string{
		letter:              letter + ": kit: tuning: invalid character 'D' looking for beginning of value: remove the file or name another with --out",
		"/proc/nope/t.json": "mkdir /proc/nope: no such file or directory",
	} {
		code, stdout, stderr := flashvk(tiny(dev, "tune", "attention", "--impl=scalar", "--budget=1ms", "--out="+out)...)
		if code != 1 || stdout != "" || stderr != "flashvk: "+want+"\n" {
			t.Errorf("--out %s: status %d, %q, %q", out, code, stdout, stderr)
		}
	}
	if text, err := os.ReadFile(letter); err != nil || string(text) != "Dear" {
		t.Errorf("%v, the letter is %q", err, text)
	}
}

// attentionSpace has the configurations of the forward pass of attention.
func attentionSpace() *table.Space[attention.Problem, attention.Config] {
	return table.SpaceOf[attention.Problem, attention.Config]("attention", kit.Forward)
}

// TestTuneDryRun lists candidates and writes nothing.
func TestTuneDryRun(t *testing.T) {
	caps, dev := device(t)
	out := filepath.Join(t.TempDir(), "out.json")
	code, stdout, stderr := flashvk(tiny(dev, "tune", "attention", "--impl=scalar", "--dry-run", "--out="+out)...)
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: 40, SeqKV: 40, HeadDim: 8, DType: dtype.Float16, Causal: true}
	want, err := attentionSpace().Candidates(caps, p, "scalar")
	if err != nil {
		t.Fatal(err)
	}
	if code != 0 || stderr != "" || strings.Count(stdout, "\n") != 1+len(want) || !strings.Contains(stdout, "\n   "+want[0].String()+"\n") {
		t.Errorf("status %d, %s, want %d candidates in\n%s", code, stderr, len(want), stdout)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a file was written")
	}
	code, _, stderr = flashvk(tiny(dev, "tune", "attention", "--impl=coopmat2", "--dtype=float32", "--dry-run")...)
	q := p
	q.DType = dtype.Float32
	if err := attention.Supports(caps, q, kit.Forward, attention.Options{Impl: attention.CoopMat2}); err != nil && (code != 1 || !strings.Contains(stderr, "unsupported on this device")) {
		t.Errorf("no candidates: status %d, %s", code, stderr)
	}
}

// TestTuneKernel tunes a product that updates C on both paths, around one configuration, and lists what
// it would try of a suite.
func TestTuneKernel(t *testing.T) {
	caps, dev := device(t)
	out := filepath.Join(t.TempDir(), "tuned.json")
	args := []string{"tune", "gemm", dev, "--out=" + out, "--m=20", "--n=24", "--k=40", "--trans=tn", "--dtype=float32", "--beta=0.5"}
	code, stdout, stderr := flashvk(append(args, "--impl=scalar", "--budget=5s", "--wide")...)
	if code != 0 || !strings.Contains(stderr, "flashvk: problem 1 of 1: gemm forward, float32: m 20, n 24, k 40, tn") {
		t.Fatalf("status %d, %s", code, stderr)
	}
	for _, want := range []string{
		"problem  gemm forward, float32: m 20, n 24, k 40, tn", "registers", " *  ", "FLOP/s", "max|Δ|",
		"\nrows for internal/pipelines/gemm/engine/tuning.go, measured on " + caps.Name, `Shape: shape{trans: "tn"}, Config: Config{Impl: Scalar, Threads: `,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
	if n := strings.Count(stdout, "\nscalar "); n < 3 || strings.Contains(stdout, "FAILED") {
		t.Errorf("%d were timed:\n%s", n, stdout)
	}
	f, err := kit.LoadTuningFile(out, caps)
	if err != nil || f.Len() != 1 || f.Rows(caps)[0].Kernel != "gemm" || f.Rows(caps)[0].Problem != "20x24x40 tn float32 beta 0.5" {
		t.Errorf("%v, %+v", err, f.Rows(caps))
	}

	code, stdout, stderr = flashvk(append(args, "--budget=1ms", "--format=benchfmt", "--config", "scalar 16x16 t8x8 k8 g1")...)
	if code != 0 {
		t.Fatalf("status %d, %s", code, stderr)
	}
	lines := map[string]int{}
	for r := benchfmt.NewReader(strings.NewReader(stdout), "stdout"); r.Scan(); {
		if x, ok := r.Result().(*benchfmt.Result); ok {
			words := strings.SplitN(x.Name.String(), "/", 4)
			lines[words[1]]++
			if words[0] != "GemmFwd" || !strings.HasPrefix(words[2], "config=") || !strings.Contains(words[3], "/trans=tn/") {
				t.Errorf("benchmark %v", words)
			}
		}
	}
	p := gemm.Problem{M: 20, N: 24, K: 40, TransA: true, Beta: 0.5}
	table, err := gemm.Choose(caps, p, kit.Forward, gemm.Options{Impl: gemm.CoopMat})
	if lines["impl=scalar"] == 0 || (lines["impl=coopmat"] > 0) != (err == nil) {
		t.Errorf("benchmark lines %v, %v:\n%s", lines, err, stdout)
	}

	code, stdout, stderr = flashvk(append(args, "--dry-run", "--config", "scalar 16x16 t8x8 k8 g1")...)
	want := []string{"   scalar 16x16 t8x8 k8 g1\n", "\n   scalar "}
	if err == nil {
		want = append(want, "\n   "+table.String()+"\n")
	}
	for _, w := range want {
		if code != 0 || stderr != "" || !strings.Contains(stdout, w) || strings.Count(stdout, "\n   ") != len(want) {
			t.Errorf("status %d, %s, %q in\n%s", code, stderr, w, stdout)
		}
	}
	code, stdout, stderr = flashvk("tune", "gemm", dev, "--suite=training", "--small", "--dry-run", "--impl=scalar")
	if code != 0 || stderr != "" || strings.Count("\n"+stdout, "\ngemm forward, ") != 6 || !strings.Contains(stdout, "\n   scalar ") {
		t.Errorf("status %d, %s\n%s", code, stderr, stdout)
	}
}
