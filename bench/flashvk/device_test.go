package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/perf/benchfmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestDevices(t *testing.T) {
	caps, _ := device(t)
	code, stdout, stderr := flashvk("devices")
	if code != 0 || stderr != "" {
		t.Fatalf("status %d, %s", code, stderr)
	}
	for _, want := range []string{caps.Name, caps.Type.String(), caps.DriverName, "subgroup   ", "KiB shared memory", "coopmat2 ", "coopmat  ", "scalar   ", "unfused  ", "auto  "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
	start := time.Now().Truncate(time.Second)
	code, stdout, stderr = flashvk("devices", "--json")
	if code != 0 || stderr != "" {
		t.Fatalf("status %d, %s", code, stderr)
	}
	var list struct {
		Schema  int
		Made    time.Time
		Devices []struct {
			Name          string
			SubgroupSize  uint32 `json:"subgroup_size"`
			CoopMatShapes []any  `json:"coop_mat_shapes"`
			Paths         []pathSupport
		}
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil {
		t.Fatal(err)
	}
	if list.Schema != bench.Schema || list.Made.Before(start) || list.Made.After(time.Now()) {
		t.Errorf("schema %d, made %v", list.Schema, list.Made)
	}
	for _, key := range regexp.MustCompile(`"([^"]*)":`).FindAllStringSubmatch(stdout, -1) {
		if !regexp.MustCompile(`^[a-z0-9_]+$`).MatchString(key[1]) {
			t.Errorf("the key %q is not in snake_case", key[1])
		}
	}
	got := list.Devices[caps.Index]
	if got.Name != caps.Name || int(got.SubgroupSize) != int(caps.SubgroupSize) || len(got.CoopMatShapes) != len(caps.CoopMatShapes) {
		t.Errorf("%+v, want %+v", got, caps)
	}
	if want := 5 * 3 * len(headDims); len(got.Paths) != want {
		t.Errorf("%d answers of paths, want %d", len(got.Paths), want)
	}
	for _, p := range got.Paths {
		if p.Supported == (p.Reason != "") || p.Supported == (p.Choice == "") {
			t.Errorf("%+v", p)
		}
	}
}

// TestDescribeDevice describes a device that is not here: no matrices, no
// 16-bit storage, and one path that takes some sizes only.
func TestDescribeDevice(t *testing.T) {
	caps := vk.Caps{
		Name: "Small GPU", Type: vk.IntegratedGPU, DriverName: "drv", DriverInfo: "1.0", APIVersion: vk.MakeVersion(1, 2, 3),
		SubgroupSize: 16, MinSubgroupSize: 8, MaxSubgroupSize: 32, MaxSharedMemoryBytes: 16384, MaxWorkgroupInvocations: 128,
		MaxWorkgroupSize: [3]uint32{128, 128, 64}, ScalarBlockLayout: true,
		Heaps: []vk.Heap{{SizeBytes: 1 << 30}}, MaxStorageBufferRange: 1 << 27, MaxAllocationBytes: 1 << 30,
	}
	var b strings.Builder
	describeDevice(&b, &caps)
	for _, want := range []string{
		"0  Small GPU (integrated GPU)\n",
		"driver     drv 1.0, Vulkan 1.2.3\n",
		"subgroup   16 (8 to 32), no maximal reconvergence",
		"workgroup  128 invocations, 16 KiB shared memory\n",
		"memory     1 GiB, largest buffer 128 MiB\n",
		"types      float32 only\n",
		"matrices   none (no VK_KHR_cooperative_matrix)\n",
		"auto       scalar for float32 (headdim 128)\n",
		"coopmat    not float16: float16 needs 16-bit storage\n",
		"scalar     float32\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	b.Reset()
	caps.Unusable = "it has no timeline semaphores"
	describeDevice(&b, &caps)
	if !strings.Contains(b.String(), "unusable   it has no timeline semaphores\n") || strings.Contains(b.String(), "auto ") {
		t.Errorf("an unusable device:\n%s", b.String())
	}
}

// small are the flags of a problem that takes no time.
func small(more ...string) []string {
	return append([]string{"bench", "attention", "--batch=1", "--heads=4", "--kv-heads=2", "--seqlen=33", "--seqlen-kv=40", "--headdim=16", "--causal", "--warmup=1", "--iters=8", "--count=4"}, more...)
}

func TestBenchFormats(t *testing.T) {
	caps, dev := device(t)
	warning := caps.Type == vk.CPU

	code, stdout, stderr := flashvk(small(dev, "--impl=scalar,unfused", "--wide")...)
	if code != 0 || stderr != "" {
		t.Fatalf("table: status %d, %s", code, stderr)
	}
	for _, want := range []string{"device   " + strings.Join(strings.Fields(caps.Name), " "), "float16: batch 1, heads 4, kv-heads 2, seqlen 33, seqlen-kv 40, headdim 16, causal", "median of 4 samples", "max|Δ|", "\nscalar ", "\nunfused ", "  pass "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("table: %q is missing in\n%s", want, stdout)
		}
	}
	if warning != strings.Contains(stdout, "WARNING") {
		t.Errorf("table: warning about a CPU device:\n%s", stdout)
	}

	code, stdout, stderr = flashvk(small(dev, "--impl=scalar,unfused", "--format=benchfmt")...)
	if code != 0 || !strings.HasPrefix(stderr, "flashvk: device ") || warning != strings.Contains(stderr, "WARNING") {
		t.Fatalf("benchfmt: status %d, %s", code, stderr)
	}
	lines := make(map[string]int)
	in := benchfmt.NewReader(strings.NewReader(stdout), "stdout")
	for in.Scan() {
		switch rec := in.Result().(type) {
		case *benchfmt.SyntaxError:
			t.Fatal(rec)
		case *benchfmt.Result:
			lines[string(rec.Name)]++
			if sec, ok := rec.Value("sec/op"); !ok || !(sec > 0) || rec.Iters != 2 {
				t.Errorf("benchfmt: %s: %v s, %d iterations", rec.Name, sec, rec.Iters)
			}
		}
	}
	const keys = "/dtype=float16/batch=1/heads=4/kv_heads=2/seq_q=33/seq_kv=40/head_dim=16/causal=true"
	if err := in.Err(); err != nil || len(lines) != 2 || lines["AttentionFwd/impl=scalar"+keys] != 4 || lines["AttentionFwd/impl=unfused"+keys] != 4 {
		t.Errorf("benchfmt: %v, %v\n%s", err, lines, stdout)
	}

	code, stdout, _ = flashvk(small(dev, "--impl=auto", "--format=csv")...)
	rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	if code != 0 || err != nil || len(rows) != 2 || len(rows[0]) != len(rows[1]) {
		t.Errorf("csv: status %d, %v\n%s", code, err, stdout)
	}

	code, stdout, _ = flashvk(small(dev, "--format=json", "--dtype=float32", "--scale=0.5", "--impl=scalar")...)
	var report struct {
		Results []struct {
			Impl, Status, DType string
			Scale               float64
			Samples             []float64 `json:"device_ns_samples"`
		}
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 {
		t.Fatalf("json: status %d, %v\n%s", code, err, stdout)
	}
	if x := report.Results[0]; len(report.Results) != 1 || x.Impl != "scalar" || x.Status != "ok" || x.DType != "float32" || x.Scale != 0.5 || len(x.Samples) != 4 {
		t.Errorf("json: %+v", report.Results)
	}
}

// TestBenchUnsupported says that a path that was asked for and is not there is
// a failure, that its reason is given, and that the others are measured all
// the same.
func TestBenchUnsupported(t *testing.T) {
	caps, dev := device(t)
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 16}
	missing := slices.IndexFunc(dtype.All(), func(x dtype.DType) bool {
		p.DType = x
		return attention.Supports(caps, p, kit.Forward, attention.Options{Impl: attention.CoopMat}) != nil
	})
	if missing >= 0 { // H200 has every path for every type
		code, stdout, stderr := flashvk(small(dev, "--impl=coopmat,scalar", "--dtype="+p.DType.String())...)
		if code != 1 || !strings.Contains(stderr, "flashvk: coopmat is not supported: ") || !strings.Contains(stdout, "coopmat is not supported: ") || !strings.Contains(stdout, "  pass ") {
			t.Errorf("status %d, stderr %s, stdout\n%s", code, stderr, stdout)
		}
	}
	code, stdout, stderr := flashvk(small("--device=no such device")...)
	if code != 1 || stdout != "" || !strings.Contains(stderr, `"no such device"`) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("no such device: status %d, %s", code, stderr)
	}
	// More than any device has.
	code, stdout, stderr = flashvk("bench", "attention", dev, "--batch=64", "--heads=64", "--seqlen=1000000", "--headdim=256")
	if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 {
		t.Errorf("a problem of many terabytes: status %d, %s", code, stderr)
	}
}

// TestNoDevice says what happens without a driver: one line, status 1.
func TestNoDevice(t *testing.T) {
	for _, name := range []string{"VK_DRIVER_FILES", "VK_ICD_FILENAMES"} {
		t.Setenv(name, filepath.Join(t.TempDir(), "none.json"))
	}
	x := []int{1, 1, 2, 8}
	in := writeTensors(t, qkv(x, x, x)...)
	out := filepath.Join(t.TempDir(), "out")
	for _, args := range [][]string{
		{"devices"}, {"bench", "attention"}, {"bench", "overhead"}, {"profile", "attention"}, {"profile", "norm"}, {"selftest"}, {"sweep", "--csv", out},
		{"run", "attention", "--in", in, "--out", out},
	} {
		code, stdout, stderr := flashvk(args...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, "no Vulkan ") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("an output file appeared")
	}
}

// TestInterrupt says that a cancelled context ends the work with one line and
// without an output file.
func TestInterrupt(t *testing.T) {
	_, dev := concurrent(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	x := []int{1, 1, 2, 8}
	in := writeTensors(t, qkv(x, x, x)...)
	dir := t.TempDir()
	for _, args := range [][]string{small(dev), {"run", "attention", dev, "--in", in, "--out", filepath.Join(dir, "out")}} {
		var stdout, stderr bytes.Buffer
		code := run(ctx, args, nil, &stdout, &stderr)
		if code != 1 || stdout.Len() != 0 || !strings.HasSuffix(stderr.String(), "flashvk: interrupted\n") {
			t.Errorf("%q: status %d, %q, %q", args, code, stdout.String(), stderr.String())
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("%v was left", entries)
	}
}

// A countdown is a context that is cancelled when it has been asked n times
// whether it is.
type countdown struct {
	context.Context
	n int
}

func (c *countdown) Err() error {
	if c.n--; c.n < 0 {
		return context.Canceled
	}
	return nil
}

// TestInterruptAnywhere cancels run at each point where it looks at its
// context, until it gets through: before that nothing may be left in the
// folder of the output.
func TestInterruptAnywhere(t *testing.T) {
	_, dev := device(t)
	x := []int{1, 1, 2, 8}
	in := writeTensors(t, qkv(x, x, x)...)
	dir := t.TempDir()
	for n := 0; ; n++ {
		var stdout, stderr bytes.Buffer
		code := run(&countdown{context.Background(), n}, []string{"run", "attention", dev, "--in", in, "--out", filepath.Join(dir, "out")}, nil, &stdout, &stderr)
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if code == 0 {
			if n < 4 || len(entries) != 1 {
				t.Errorf("done after %d questions, with %v", n, entries)
			}
			return
		}
		if code != 1 || !strings.HasSuffix(stderr.String(), "flashvk: interrupted\n") || len(entries) != 0 || n > 100 {
			t.Fatalf("cancelled at question %d: status %d, %q, left %v", n, code, stderr.String(), entries)
		}
	}
}

// read returns a tensor of a file.
func read(t *testing.T, f *safetensors.File, name string, want dtype.DType, shape ...int) []float32 {
	t.Helper()
	x, ok := f.Tensor(name)
	if !ok || x.DType != bench.FileDType(want) || fmt.Sprint(x.Shape) != fmt.Sprint(shape) {
		t.Fatalf("%s is %+v, want %v of shape %v", name, x, want, shape)
	}
	b := make([]byte, x.Bytes())
	if err := f.ReadAt(x, b, 0); err != nil {
		t.Fatal(err)
	}
	values := make([]float32, len(b)/want.Size())
	storage.Decode(want, values, b)
	return values
}

// TestRun runs files through every path, or with flags on software, unless there is time, through
// one in each format, and compares the output files with the float64 reference.
func TestRun(t *testing.T) {
	caps, dev := device(t)
	base := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 35, SeqKV: 50, HeadDim: 24}
	for _, c := range []struct {
		name   string
		flags  []string
		change func(*attention.Problem)
	}{
		{"plain", nil, func(*attention.Problem) {}},
		{"causal", []string{"--causal"}, func(p *attention.Problem) { p.Causal, p.SeqQ = true, 60 }}, // 10 rows see no key
		{"top-left", []string{"--causal", "--causal-align", "top-left"}, func(p *attention.Problem) { p.Causal, p.CausalAlign = true, attention.TopLeft }},
		{"scale", []string{"--scale", "-0.7"}, func(p *attention.Problem) { p.Scale = -0.7 }},
	} {
		for _, dt := range dtype.All() {
			impls := append([]attention.Impl{attention.Auto}, attention.Impls()...)
			if c.flags != nil && !vktest.ThoroughWith(caps) {
				impls = softwarePaths[dt]
			}
			for _, impl := range impls {
				t.Run(fmt.Sprintf("%s/%v/%v", c.name, dt, impl), func(t *testing.T) {
					p := base
					c.change(&p)
					p.DType = dt
					if caps.Type == vk.CPU && dt == dtype.Float32 {
						p.HeadDim = 8 // lavapipe compiles its kernels on matrices for long
					}
					err := attention.Supports(caps, p, kit.Forward, attention.Options{Impl: impl})
					runFile(t, p, randomInputs(p), err, append(c.flags, "--impl", impl.String(), dev)...)
				})
			}
		}
	}
}

// runFile runs attention on tensors of p and checks the output file. If
// unsupported is not nil, it wants a failure that says so.
func runFile(t *testing.T, p attention.Problem, in ref.Inputs[float32], unsupported error, flags ...string) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	writeInputs(t, path, in, p)

	// Out over in: the file is replaced only when the new one is complete.
	code, stdout, stderr := flashvk(append([]string{"run", "attention", "--in", path, "--out", path}, flags...)...)
	out, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if unsupported != nil {
		reason, _, _ := strings.Cut(unsupported.Error(), ": unsupported")
		if _, ok := out.Tensor("q"); code != 1 || !strings.Contains(stderr, reason) || !ok {
			t.Errorf("status %d, %s, want %v and the input as it was", code, stderr, unsupported)
		}
		return
	}
	if code != 0 || stdout != "" || !strings.HasPrefix(stderr, "flashvk: device ") {
		t.Fatalf("status %d, stdout %q, stderr %s", code, stdout, stderr)
	}
	if n := len(out.Tensors()); n != 2 {
		t.Errorf("%d tensors, want o and lse", n)
	}
	o, lse := read(t, out, "o", p.DType, p.OShape()...), read(t, out, "lse", dtype.Float32, p.LSEShape()...)
	want, wantLSE, plain := make([]float64, len(o)), make([]float64, len(lse)), make([]float64, len(o))
	require.NoError(t, ref.Forward(want, wantLSE, in, p))
	require.NoError(t, ref.Plain(plain, nil, in, p))
	bound := ref.PlainBound(want, plain, wantLSE, ref.Measure(in, p), p)
	require.LessOrEqual(t, guard.MaxDiff(widened(o), want).Off, bound.O)
	require.LessOrEqual(t, guard.MaxDiff(widened(lse), wantLSE).Off, bound.LSE)
}

// widened returns x in float64.
func widened(x []float32) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = float64(x[i])
	}
	return y
}

// TestRunOutput says that an output that cannot be written is a failure and
// leaves nothing.
func TestRunOutput(t *testing.T) {
	_, dev := device(t)
	x := []int{1, 1, 2, 8}
	in := writeTensors(t, qkv(x, x, x)...)
	for _, c := range []struct{ out, want string }{
		{filepath.Join(t.TempDir(), "none", "out"), "no such file or directory"},
		{t.TempDir(), "is a directory, not a regular file"},
		{"/dev/null", "is a device, not a regular file"},
	} {
		code, _, stderr := flashvk("run", "attention", dev, "--in", in, "--out", c.out)
		if code != 1 || !strings.Contains(stderr, c.out+": "+c.want) {
			t.Errorf("%s: status %d, %s", c.out, code, stderr)
		}
	}
}

// TestRunLarge sends tensors that are larger than one piece of a transfer. With
// one key O is V whatever the scores, so that each element is known.
func TestRunLarge(t *testing.T) {
	_, dev := device(t)
	const heads, rows, d = 4, transferBytes/32 + 1000, 8
	var value []float32 // (heads, d)
	for i := range heads * d {
		value = append(value, float32(i+1))
	}
	q := make([]float32, rows*d)
	for i := range q {
		q[i] = float32(i % 100)
	}
	path := filepath.Join(t.TempDir(), "x.safetensors")
	key := make([]float32, heads*d)
	for h := range heads {
		key[h*d] = 0.25
	}
	filetest.Write(t, path, qkv([]int{1, heads, rows / heads, d}, []int{1, heads, 1, d}, []int{1, heads, 1, d}, "F32", "F32", "F32"),
		map[string][]float32{"q": q, "k": key, "v": value})
	code, _, stderr := flashvk("run", "attention", dev, "--impl=scalar", "--scale=1", "--in", path, "--out", path)
	if code != 0 {
		t.Fatalf("status %d, %s", code, stderr)
	}
	out, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for i, x := range read(t, out, "o", dtype.Float32, 1, heads, rows/heads, d) {
		// One key: O is V, but for exp2(0), which a GPU need not find to be exactly 1.
		if want := value[i/(rows/heads*d)*d+i%d]; math.Abs(float64(x-want)) > 0x1p-21*float64(want) {
			t.Fatalf("o[%d,%d] is %v, want %v", i/d, i%d, x, want)
		}
	}
	// LSE is the score of the only key: a quarter of the row's first element.
	for i, x := range read(t, out, "lse", dtype.Float32, 1, heads, rows/heads) {
		if want := float32(i*d%100) / 4; math.Abs(float64(x-want)) > 1e-5*float64(want)+1e-6 {
			t.Fatalf("lse[%d] is %v, want %v", i, x, want)
		}
	}
}
