package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// TestMain keeps the program's pipelines out of the user's cache. Mesa's own
// cache stays where it is: without it lavapipe compiles for seconds.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "flashvk-cache-")
	if err != nil {
		panic(err)
	}
	if cache, err := os.UserCacheDir(); err == nil && os.Getenv("MESA_SHADER_CACHE_DIR") == "" {
		os.Setenv("MESA_SHADER_CACHE_DIR", cache)
	}
	os.Setenv("XDG_CACHE_HOME", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// flashvk runs the program.
func flashvk(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(""), &out, &err)
	return code, out.String(), err.String()
}

// writeTensors makes a file of tensors, their data being zero, and returns its
// path.
func writeTensors(t *testing.T, tensors ...safetensors.Tensor) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.safetensors")
	filetest.Write[[]byte](t, path, tensors, nil)
	return path
}

func qkv(q, k, v []int, types ...safetensors.DType) []safetensors.Tensor {
	for len(types) < 3 {
		types = append(types, safetensors.F16)
	}
	return []safetensors.Tensor{{Name: "q", DType: types[0], Shape: q}, {Name: "k", DType: types[1], Shape: k}, {Name: "v", DType: types[2], Shape: v}}
}

// TestErrors has the line and the exit status of every mistake that shows
// without a device.
func TestErrors(t *testing.T) {
	good := []int{2, 4, 3, 16}
	file := func(tensors ...safetensors.Tensor) string { return writeTensors(t, tensors...) }
	runIn := func(path string, more ...string) []string {
		return append([]string{"run", "attention", "--in", path, "--out", filepath.Join(t.TempDir(), "out")}, more...)
	}
	cut := filepath.Join(t.TempDir(), "cut.safetensors")
	whole, err := os.ReadFile(file(qkv(good, good, good)...))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, whole[:len(whole)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	bf := safetensors.BF16
	withInput := func(name string, format safetensors.DType, shape ...int) []safetensors.Tensor {
		return append(qkv(good, good, good), safetensors.Tensor{Name: name, DType: format, Shape: shape})
	}
	packed := func(q, kv []int32, format safetensors.DType) string { return writePacked(t, q, kv, format) }
	for _, c := range []struct {
		args string // split at spaces, unless list is given
		list []string
		code int
		want string // in the line, after "flashvk: "
	}{
		{args: "", code: 2, want: "a command is missing: bench, completion, devices, plot, profile, run, selftest, sweep, train, tune, version"},
		{args: "bench", code: 2, want: "bench: a command is missing: attention, compare"},
		{args: "run", code: 2, want: "run: a command is missing: attention"},
		{args: "nonsense", code: 2, want: `"nonsense" is not one of the commands bench, completion, devices, plot, profile, run, selftest, sweep, train, tune, version`},
		{args: "bench atention", code: 2, want: `bench: "atention" is not one of the commands attention, compare`},
		{args: "benhc attention", code: 2, want: `; do you mean bench?`},
		{args: "bench atention", code: 2, want: `; do you mean attention?`},
		{args: "run mpl", code: 2, want: `run: "mpl" is not one of the commands attention`},
		{args: "bench attention 4", code: 2, want: `bench attention: argument "4" is not expected`},
		{args: "run attention x y", code: 2, want: `run attention: argument "x" is not expected`},
		{args: "version x", code: 2, want: `version: argument "x" is not expected`},
		{args: "devices --yaml", code: 2, want: "unknown flag: --yaml"},
		{args: "bench attention --batch", code: 2, want: "flag needs an argument: --batch"},
		{args: "bench attention --sweep all", code: 2, want: "unknown flag: --sweep"},
		{args: "bench attention --suite all", code: 2, want: `invalid argument "all" for "--suite" flag: not one of training, decoder, length, latency, rectangular, throughput`},
		{args: "bench attention --suite throughput --heads 4", code: 2, want: "--suite throughput and --heads contradict each other"},
		{args: "bench attention --suite training --dtype float16", code: 2, want: "--dtype float16: suite training says which formats its cases have"},
		{args: "bench attention --peer torch", code: 2, want: `invalid argument "torch" for "--peer" flag: "torch" is not NAME=COMMAND`},
		{args: "bench attention --peer a=x --peer a=y", code: 2, want: "--peer a occurs twice"},
		{args: "bench attention --peer-time 0s", code: 2, want: "--peer-time 0s is not positive"},
		{args: "bench attention --small", code: 2, want: "--small needs --suite"},

		{args: "bench attention --batch x", code: 2, want: `invalid argument "x" for "--batch" flag: not an integer`},
		{args: "bench attention --batch 1.5", code: 2, want: `invalid argument "1.5" for "--batch" flag: not an integer`},
		{args: "bench attention --batch 99999999999999999999", code: 2, want: `invalid argument "99999999999999999999" for "--batch" flag: too large`},
		{args: "bench attention --batch 0", code: 2, want: "attention: batch=0 is not positive"},
		{args: "bench attention --heads 0", code: 2, want: "attention: num_heads=0 is not positive"},
		{args: "bench attention --kv-heads -1", code: 2, want: "attention: num_kv_heads=-1 is not positive"},
		{args: "bench attention --seqlen -5", code: 2, want: "attention: seq_q=-5 is not positive"},
		{args: "bench attention --seqlen-kv 0", code: 2, want: "attention: seq_kv=0 is not positive"},
		{args: "bench attention --headdim 0", code: 2, want: "attention: head_dim=0 is not positive"},
		{args: "bench attention --headdim 12", code: 2, want: "attention: head_dim=12 is not a multiple of 8"},
		{args: "bench attention --headdim 264", code: 2, want: "attention: head_dim=264 is larger than 256"},
		{args: "bench attention --seqlen 2147483648", code: 2, want: "attention: seq_q=2147483648 is larger than 2147483647"},
		{args: "bench attention --heads 6 --kv-heads 4", code: 2, want: "attention: num_heads=6 is not a multiple of num_kv_heads=4"},
		{args: "bench attention --kv-heads 3", code: 2, want: "is not a multiple of num_kv_heads=3"},
		{args: "bench attention --dtype float8", code: 2, want: `invalid argument "float8" for "--dtype" flag: not one of float16, bfloat16, float32`},
		{args: "bench attention --causal-align top-left", code: 2, want: "--causal-align top-left needs --causal"},
		{args: "bench attention --causal --causal-align middle", code: 2, want: `invalid argument "middle" for "--causal-align" flag: not one of bottom-right, top-left`},
		{args: "bench attention --scale x", code: 2, want: `invalid argument "x" for "--scale" flag: not a number`},
		{args: "bench attention --scale nan", code: 2, want: "attention: scale=NaN times log2(e) is not a normal float32"},
		{args: "bench attention --scale 1e39", code: 2, want: "attention: scale=1e+39 times log2(e) is not a normal float32"},
		{args: "bench attention --causal=maybe", code: 2, want: `invalid argument "maybe" for "--causal" flag: not true or false`},
		{args: "run attention --in x --out y --scale 1e-40", code: 2, want: "flashvk: attention: scale=1e-40 times log2(e) is not a normal float32"},
		{args: "bench attention --scale 0", code: 2, want: "--scale 0 is not possible"},
		{args: "bench attention --window 5", code: 2, want: `invalid argument "5" for "--window" flag: not two numbers L,R`},
		{args: "bench attention --window 5,x", code: 2, want: `invalid argument "5,x" for "--window" flag: not two integers L,R`},
		{args: "bench attention --window -2,0", code: 2, want: "attention: window left=-2 excludes a row's own position: it must be a number of keys, or -1 for unlimited"},
		{args: "bench attention --softcap -3", code: 2, want: "attention: softcap=-3 is not a positive, normal float32"},
		{args: "bench attention --softcap 0", code: 2, want: "--softcap 0 is not possible"},
		{args: "bench attention --dropout 0.1", code: 2, want: "--dropout 0.1 needs --seed"},
		{args: "bench attention --dropout 1 --seed 2", code: 2, want: "attention: dropout p=1 is not in [0, 1)"},
		{args: "bench attention --dropout nan --seed 2", code: 2, want: "attention: dropout p=NaN is not in [0, 1)"},
		{args: "bench attention --seed 2", code: 2, want: "--seed 2 needs --dropout"},
		{args: "bench attention --dropout 0.5 --seed -1", code: 2, want: `invalid argument "-1" for "--seed" flag: not an integer from 0 to 2^64-1`},
		{args: "bench attention --value-dim 0", code: 2, want: "--value-dim 0 is not positive"},
		{args: "bench attention --value-dim 20", code: 2, want: "attention: value_dim=20 is not a multiple of 8"},
		{args: "bench attention --alibi=rows", code: 2, want: `invalid argument "rows" for "--alibi" flag: not one of heads, batch-heads`},
		{args: "bench attention --bias keys", code: 2, want: `invalid argument "keys" for "--bias" flag: "keys" is not one of batch, heads, rows`},
		{args: "bench attention --bias rows,heads,rows", code: 2, want: `"rows" occurs twice`},
		{args: "bench attention --bias shared --bias-dtype bfloat16", code: 2, want: "attention: bias is bfloat16, want float32 or the float16 of q"},
		{args: "bench attention --bias-dtype float16", code: 2, want: "--bias-dtype float16 needs --bias"},
		{args: "bench attention --varlen --batch 2000000", code: 2, want: "--varlen with --batch 2000000 is more than 1048576 sequences"},
		{args: "bench attention --varlen --batch 4 --seqlen 2147483647", code: 2, want: "attention: total_q=5368709119 is larger than 2147483647"},
		{args: "bench attention --varlen --batch 0", code: 2, want: "attention: batch=0 is not positive"},
		{args: "bench attention --impl cuda", code: 2, want: `"cuda" is not one of auto, coopmat2, coopmat, scalar, unfused`},
		{args: "bench attention --impl scalar,", code: 2, want: `"" is not one of auto, coopmat2, coopmat, scalar, unfused`},
		{args: "bench attention --impl scalar,auto,scalar", code: 2, want: `"scalar" occurs twice`},
		{args: "bench attention --format xml", code: 2, want: `invalid argument "xml" for "--format" flag: not one of table, markdown, benchfmt, csv, json`},
		{args: "bench attention --count 0", code: 2, want: "--count 0 is less than 1"},
		{args: "bench attention --iters 0", code: 2, want: "--iters 0 is less than 1"},
		{args: "bench attention --count 100001", code: 2, want: "--count 100001 is more than 100000"},
		{args: "bench attention --iters 10001", code: 2, want: "--iters 10001 is more than 1000 in each of 10 samples"},
		{args: "bench attention --iters 1001 --count 1", code: 2, want: "--iters 1001 is more than 1000 in each of 1 samples"},
		{args: "bench attention --warmup -1", code: 2, want: "--warmup -1 is less than 0"},
		{args: "bench attention --backward --both", code: 2, want: "--backward and --both contradict each other"},
		{args: "sweep --csv x --both --peer x=y", code: 2, want: "--both and --peer contradict each other: a sweep has one kernel"},
		{args: "bench attention --atol -1", code: 2, want: "--atol -1 is not a finite number from 0 on"},
		{args: "bench attention --rtol NaN", code: 2, want: "--rtol NaN is not a finite number from 0 on"},

		{args: "sweep", code: 2, want: "sweep needs --csv FILE"},
		{args: "sweep x", code: 2, want: `sweep: argument "x" is not expected`},
		{args: "sweep --csv x --min-len 0", code: 2, want: "--min-len 0 is less than 1"},
		{args: "sweep --csv x --min-len 9 --max-len 8", code: 2, want: "--max-len 8 is less than --min-len 9"},
		{args: "sweep --csv x --step 0", code: 2, want: "--step 0 is less than 1"},
		{args: "sweep --csv x --max-len 100000 --step 1", code: 2, want: "--step 1 makes 99873 lengths, more than 10000"},
		{args: "sweep --csv x --count 0", code: 2, want: "--count 0 is not in 1..100000"},
		{args: "sweep --csv x --headdim 20", code: 2, want: "attention: head_dim=20 is not a multiple of 8"},
		{args: "sweep --csv x --scale 0", code: 2, want: "--scale 0 is not possible"},
		{args: "sweep --csv x --causal-align top-left", code: 2, want: "--causal-align top-left needs --causal"},
		{args: "sweep --csv x --peer a=x --peer a=y", code: 2, want: "--peer a occurs twice"},
		{args: "sweep --csv x --tuning a --no-tuning", code: 2, want: "contradict each other"},
		{args: "bench overhead --format csv", code: 2, want: `invalid argument "csv" for "--format" flag: not one of table, markdown, benchfmt`},
		{args: "bench overhead --count 0", code: 2, want: "--count 0 is not in 1..100000"},
		{args: "bench overhead --impl x", code: 2, want: `"x" is not one of auto, coopmat2`},
		{args: "bench overhead --tuning a --no-tuning", code: 2, want: "contradict each other"},
		{args: "selftest --format csv", code: 2, want: `invalid argument "csv" for "--format" flag: not one of table, markdown`},
		{args: "selftest --impl auto", code: 2, want: "--impl auto is not a path to test"},
		{args: "selftest --budget 0s", code: 2, want: "--budget 0s is not positive"},
		{args: "selftest x", code: 2, want: `selftest: argument "x" is not expected`},
		{args: "profile", code: 2, want: "profile: a command is missing: " + kernelNames()},
		{args: "profile norml", code: 2, want: `profile: "norml" is not one of the commands attention, decode, gemm`},
		{args: "profile gemm x", code: 2, want: `profile gemm: argument "x" is not expected`},
		{args: "profile gemm --m 0", code: 2, want: "gemm: m=0 is not from 1 to"},
		{args: "profile gemm --format json", code: 2, want: `invalid argument "json" for "--format" flag: not one of table, markdown`},
		{args: "profile gemm --count 0", code: 2, want: "--count 0 is not in 1..100000"},
		{args: "profile gemm --trace=", code: 2, want: "--trace is empty"},
		{args: "profile gemm --impl auto,scalar", code: 2, want: `invalid argument "auto,scalar" for "--impl" flag: not one of auto, coopmat, scalar`},
		{args: "profile gemm --suite throughput", code: 2, want: `"throughput" for "--suite" flag: not one of training`},
		{args: "profile gemm --suite training --config x", code: 2, want: "--suite training and --config contradict each other"},
		{args: "profile gemm --config x", code: 2, want: "--config: gemm: "},
		{args: "bench mlp --config pairs", code: 2, want: "--config: mlp: "},
		{args: "profile mlp --small", code: 2, want: "--small needs --suite"},
		{args: "profile mlp --backward --both", code: 2, want: "--backward and --both contradict each other"},
		{args: "profile optim --backward", code: 2, want: "unknown flag: --backward"},
		{args: "profile attention --format csv", code: 2, want: `invalid argument "csv" for "--format" flag: not one of table, markdown`},
		{args: "profile attention --count 0", code: 2, want: "--count 0 is not in 1..100000"},
		{args: "profile attention --impl scalar,unfused", code: 2, want: `invalid argument "scalar,unfused" for "--impl" flag`},
		{args: "profile attention --headdim 20", code: 2, want: "attention: head_dim=20 is not a multiple of 8"},
		{args: "profile attention --trace=", code: 2, want: "--trace is empty"},
		{args: "profile attention --tuning a --no-tuning", code: 2, want: "contradict each other"},
		{args: "profile attention --backward --both", code: 2, want: "--backward and --both contradict each other"},
		{args: "sweep --csv x --backward --both", code: 2, want: "--backward and --both contradict each other"},
		{args: "plot", code: 2, want: "plot needs one file with results, not 0"},
		{args: "plot x", code: 2, want: "plot needs --out FILE.svg, or a folder"},
		{args: "plot /nowhere/x --out y", code: 1, want: "open /nowhere/x: no such file or directory"},
		{args: "plot /dev/zero --out y", code: 1, want: "/dev/zero: it has more than 67108864 bytes, the most of a file of results"},
		{args: "plot /dev/null --out y", code: 1, want: "/dev/null: it is empty"},

		{args: "run attention", code: 2, want: "run attention needs --in FILE"},
		{args: "run attention --in x", code: 2, want: "run attention needs --out FILE"},
		{args: "run attention --out x", code: 2, want: "run attention needs --in FILE"},
		{list: runIn(file(qkv(good, good, good)...), "--out", "/nowhere/o"), code: 1, want: "safetensors: /nowhere/o: no such file or directory"},
		{list: runIn(file(qkv(good, good, good)...), "--backward"), code: 1, want: `tensor "do" is missing: --backward needs it`},
		{list: runIn(file(withInput("do", "F32", good...)...), "--backward"), code: 1, want: `tensor "do": dtype F32, want F16`},
		{list: runIn(file(withInput("do", "F16", 2, 4, 3, 8)...), "--backward"), code: 1, want: `tensor "do": shape [2 4 3 8], want [2 4 3 16]`},
		{list: runIn(file(append(withInput("do", "F16", good...), safetensors.Tensor{Name: "dlse", DType: "F16", Shape: good[:3]})...), "--backward"), code: 1, want: `tensor "dlse": dtype F16, want F32`},
		{list: runIn(file(append(withInput("do", "F16", good...), safetensors.Tensor{Name: "dlse", DType: "F32", Shape: good})...), "--backward"), code: 1, want: `tensor "dlse": shape [2 4 3 16], want [2 4 3]`},
		{list: runIn(file(withInput("dq", "F16", good...)...), "--backward"), code: 1, want: `tensor "dq" is not one of q, k, v, bias, alibi_slopes, key_mask, sinks, cu_seqlens_q, cu_seqlens_kv, do, dlse`},
		{list: runIn(file(withInput("dlse", "F32", good[:3]...)...)), code: 1, want: `tensor "dlse" is for --backward only`},
		{list: runIn(file(qkv(good, good, good)...), "--causal-align", "bottom-right"), code: 2, want: "--causal-align bottom-right needs --causal, --window or ALiBi's slopes"},
		{args: "run attention --in x --out y --dropout 0.1", code: 2, want: "--dropout 0.1 needs --seed"},
		{args: "run attention --in x --out y --impl scalar,unfused", code: 2, want: `invalid argument "scalar,unfused" for "--impl" flag: not one of auto, coopmat2, coopmat, scalar, unfused`},
		{args: "run attention --in /nowhere/x --out y", code: 1, want: "safetensors: /nowhere/x: no such file or directory"},
		{args: "run attention --in / --out y", code: 1, want: "safetensors: /: is a directory, not a regular file"},
		{args: "run attention --in /dev/null --out y", code: 1, want: "safetensors: /dev/null: is a device, not a regular file"},

		{list: runIn(cut), code: 1, want: `run past the `},
		{list: runIn(file()), code: 1, want: `tensor "q" is missing`},
		{list: runIn(file(qkv(good, good, good)[:2]...)), code: 1, want: `tensor "v" is missing`},
		{list: runIn(file(append(qkv(good, good, good), safetensors.Tensor{Name: "Q", DType: "F16"})...)), code: 1, want: `tensor "Q" is not one of q, k, v`},
		{list: runIn(file(append(qkv(good, good, good), safetensors.Tensor{Name: "do", DType: "F16", Shape: good})...)), code: 1, want: `tensor "do" is for --backward only`},
		{list: runIn(file(qkv([]int{4, 3, 16}, good, good)...)), code: 1, want: `tensor "q": shape [4 3 16] has 3 axes, want 4: batch, heads, seq, headdim`},
		{list: runIn(file(qkv(good, good, good, "F64")...)), code: 1, want: `tensor "q": dtype F64 is not one of F16, BF16, F32`},
		{list: runIn(file(qkv(good, good, good, "F16", "F8_E4M3")...)), code: 1, want: `tensor "k": dtype F8_E4M3 is not one of F16, BF16, F32`},
		{list: runIn(file(qkv(good, good, good, bf, bf, "F16")...)), code: 1, want: `tensor "v": dtype F16 differs from BF16 of q`},
		{list: runIn(file(qkv(good, good, []int{2, 4, 4, 16})...)), code: 1, want: `tensor "v": shape [2 4 4 16] differs from [2 4 3 16] of k`},
		{list: runIn(file(qkv(good, []int{3, 4, 3, 16}, []int{3, 4, 3, 16})...)), code: 1, want: `tensor "k": batch 3 differs from 2 of q`},
		{list: runIn(file(qkv(good, []int{2, 4, 3, 8}, []int{2, 4, 3, 8})...)), code: 1, want: `tensor "k": headdim 8 differs from 16 of q`},
		{list: runIn(file(qkv(good, []int{2, 3, 3, 16}, []int{2, 3, 3, 16})...)), code: 1, want: `attention: num_heads=4 is not a multiple of num_kv_heads=3`},
		{list: runIn(file(qkv([]int{2, 4, 3, 12}, []int{2, 4, 3, 12}, []int{2, 4, 3, 12})...)), code: 1, want: `attention: head_dim=12 is not a multiple of 8`},
		{list: runIn(file(withInput("bias", "F16", 2, 4, 3)...)), code: 1, want: `tensor "bias": shape [2 4 3] has 3 axes, want 4: batch or 1, heads or 1, seq_q or 1, seq_kv`},
		{list: runIn(file(withInput("bias", "BF16", 1, 1, 1, 3)...)), code: 1, want: `tensor "bias": dtype BF16 is not F32 or F16`},
		{list: runIn(file(withInput("bias", "F32", 3, 1, 1, 3)...)), code: 1, want: `tensor "bias": batch 3 is neither 2 nor 1`},
		{list: runIn(file(withInput("bias", "F32", 2, 2, 1, 3)...)), code: 1, want: `tensor "bias": heads 2 is neither 4 nor 1`},
		{list: runIn(file(withInput("bias", "F32", 2, 4, 5, 3)...)), code: 1, want: `tensor "bias": seq_q 5 is neither 3 nor 1`},
		{list: runIn(file(withInput("bias", "F32", 2, 4, 3, 1)...)), code: 1, want: `tensor "bias": seq_kv 1 is not 3`},
		{list: runIn(file(withInput("alibi_slopes", "F16", 4)...)), code: 1, want: `tensor "alibi_slopes": dtype F16 is not F32`},
		{list: runIn(file(withInput("alibi_slopes", "F32", 2)...)), code: 1, want: `tensor "alibi_slopes": shape [2], want [4]: heads`},
		{list: runIn(file(withInput("alibi_slopes", "F32", 4, 2)...)), code: 1, want: `tensor "alibi_slopes": shape [4 2], want [2 4]: batch, heads`},
		{list: runIn(file(withInput("sinks", "F32", 1, 4)...)), code: 1, want: `tensor "sinks": shape [1 4], want [4]: heads`},
		{list: runIn(file(withInput("key_mask", "U8", 2, 3)...)), code: 1, want: `tensor "key_mask": dtype U8 is not BOOL`},
		{list: runIn(file(withInput("key_mask", "BOOL", 2, 4)...)), code: 1, want: `tensor "key_mask": shape [2 4], want [2 3]: batch, seq_kv`},
		{list: runIn(file(withInput("cu_seqlens_q", "I32", 3)...)), code: 1, want: `tensors "cu_seqlens_q" and "cu_seqlens_kv" are needed both, or neither`},
		{list: runIn(packed([]int32{0, 2, 3}, []int32{0, 1}, "I32")), code: 1, want: `tensor "cu_seqlens_kv": 2 entries differ from 3 of cu_seqlens_q`},
		{list: runIn(packed([]int32{0, 2, 3}, []int32{0, 1, 4}, "U32")), code: 1, want: `tensor "cu_seqlens_q": dtype U32 is not I32`},
		{list: runIn(packed([]int32{0}, []int32{0}, "I32")), code: 1, want: `tensor "cu_seqlens_q": shape [1] is not batch+1`},
		{list: runIn(packed([]int32{0, 2, 1}, []int32{0, 1, 4}, "I32")), code: 1, want: `attention: cu_seqlens_q[2]=1 is less than 2 before it`},
		{list: runIn(packed([]int32{0, 2, 3}, []int32{0, 1, 6}, "I32")), code: 1, want: `attention: cu_seqlens_kv[2]=6 is beyond the tensor, total_kv=5`},
		{list: runIn(packed([]int32{1, 2, 3}, []int32{0, 1, 5}, "I32")), code: 1, want: `attention: cu_seqlens_q[0]=1 is not 0`},
		{list: runIn(file(withInput("cu_seqlens_q", "I32", 3, 1)...)), code: 1, want: `tensor "cu_seqlens_q": shape [3 1] is not batch+1`},
		{list: runIn(file(qkv(good, good, []int{2, 4, 3, 20})...)), code: 1, want: `attention: value_dim=20 is not a multiple of 8`},
		{list: runIn(file(qkv(good, good, []int{2, 4, 3, 0})...)), code: 1, want: `tensor "v": shape [2 4 3 0] has a last axis of 0`},
		{list: runIn(file(qkv([]int{2, 4, 0, 16}, good, good)...)), code: 1, want: `attention: seq_q=0 is not positive`},
		{list: runIn(file(qkv(good, []int{2, 4, 0, 16}, []int{2, 4, 0, 16})...)), code: 1, want: `attention: seq_kv=0 is not positive`},
	} {
		args := c.list
		if args == nil {
			args = strings.Fields(c.args)
		}
		code, stdout, stderr := flashvk(args...)
		if code != c.code {
			t.Errorf("%q: exit status %d, want %d (%s)", args, code, c.code, stderr)
		}
		if !strings.HasPrefix(stderr, "flashvk: ") || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, "\n") {
			t.Errorf("%q: stderr %q\nwant one line with %q", args, stderr, c.want)
		}
		if stdout != "" {
			t.Errorf("%q: stdout %q, want nothing", args, stdout)
		}
		for i, a := range args {
			if a == "--out" && i+1 < len(args) {
				if _, err := os.Stat(args[i+1]); err == nil {
					t.Errorf("%q left an output file", args)
				}
			}
		}
	}
}

// attentionFlags are those that say what a problem of attention is.
var attentionFlags = []string{"batch", "heads", "kv-heads", "seqlen", "seqlen-kv", "headdim", "dtype", "causal", "causal-align", "scale",
	"window", "softcap", "dropout", "seed", "value-dim", "alibi", "bias", "bias-dtype", "key-mask", "sinks", "varlen"}

// TestHelp says that every command has help with an example and that help goes
// to standard output.
// TestCompletion: the values of flags that are names complete, also behind the comma of a list, and
// a misspelt flag names the one that is meant.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"bench attention --dtype ":         "float16 bfloat16 float32",
		"bench attention --dtype float16,": "float16,float16 float16,bfloat16 float16,float32",
		"bench norm --suite ":              "training",
		"bench train --shape tiny,":        "tiny,tiny tiny,small tiny,mid tiny,large",
		"bench compare --format ":          "table markdown",
		"train --checkpoint ":              "off selective blocks auto",
		"run attention --impl ":            "auto coopmat2 coopmat scalar unfused",
		"selftest --format ":               "table markdown",
		"bench attention --causal-align ":  "bottom-right top-left",
		"bench decode --part ":             "decode append step prefill",
		"sweep gemm --impl coopmat,":       "coopmat,auto coopmat,coopmat coopmat,scalar",
	} {
		code, stdout, stderr := flashvk(append([]string{"__complete"}, strings.Split(args, " ")...)...)
		require.Zero(t, code, stderr)
		require.Equal(t, want+" :4", strings.Join(strings.Fields(stdout), " "), args)
	}
	for args, want := range map[string]string{
		"bench attention --seqln 4": "unknown flag: --seqln; do you mean --seqlen?",
		"train --step 4":            "unknown flag: --step; do you mean --steps or --seed?",
		"selftest --xyzzy":          "unknown flag: --xyzzy",
	} {
		code, _, stderr := flashvk(strings.Fields(args)...)
		require.Equal(t, 2, code)
		require.Equal(t, "flashvk: "+want+"\n", stderr)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range []string{"--help", "devices --help", "bench attention --help", "run attention -h", "tune attention --help", "tune gemm --help", "sweep --help", "sweep gemm --help", "plot --help", "bench compare --help", "bench overhead --help", "profile attention --help", "profile mlp --help", "selftest --help", "bench norm --help", "run optim --help", "help bench attention"} {
		code, stdout, stderr := flashvk(strings.Fields(args)...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Examples:") || !strings.Contains(stdout, "Flags:") {
			t.Errorf("%s: status %d, stderr %q, stdout\n%s", args, code, stderr, stdout)
		}
	}
	_, stdout, _ := flashvk("bench", "attention", "--help")
	for _, flag := range append([]string{"warmup", "iters", "count", "impl", "format", "device", "suite", "small", "out", "peer", "peer-time"}, attentionFlags...) {
		if !strings.Contains(stdout, "--"+flag+" ") {
			t.Errorf("help of bench attention does not explain --%s", flag)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, args := range []string{"version", "--version"} {
		code, stdout, stderr := flashvk(args)
		if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "flashvk ") || strings.Count(stdout, "\n") != 1 {
			t.Errorf("%s: status %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

// TestExamples parses every example of the help texts, so that none names a
// flag that is not there.
func TestExamples(t *testing.T) {
	root := newRoot(&app{stdout: io.Discard, stderr: io.Discard})
	n := 0
	for _, path := range [][]string{{}, {"devices"}, {"bench", "attention"}, {"run", "attention"}, {"tune", "attention"}, {"tune", "gemm"}, {"sweep"}, {"sweep", "attention"}, {"sweep", "gemm"}, {"sweep", "optim"}, {"plot"}, {"bench", "compare"}, {"bench", "overhead"}, {"profile", "attention"}, {"profile", "gemm"}, {"profile", "optim"}, {"selftest"}} {
		cmd, _, err := root.Find(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(cmd.Example, "\n") {
			args := strings.Fields(strings.Split(strings.Split(line, "&&")[0], ">")[0])
			if len(args) == 0 || args[0] != "flashvk" {
				t.Errorf("example %q does not start with flashvk", line)
				continue
			}
			found, rest, err := root.Find(args[1:])
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err != nil || !whole(found) {
				t.Errorf("example %q: %v", line, err)
			}
			n++
		}
	}
	if n < 16 {
		t.Errorf("%d examples, want at least 16", n)
	}
}

// TestFullDisk says that results that could not be written are a failure.
func TestFullDisk(t *testing.T) {
	var stderr bytes.Buffer
	code := run(context.Background(), []string{"version"}, nil, failingWriter{}, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), "disk is full") {
		t.Errorf("status %d, %q", code, stderr.String())
	}
	stderr.Reset()
	code = run(context.Background(), []string{"--help"}, nil, failingWriter{}, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), "writing the results: disk is full") {
		t.Errorf("help: status %d, %q", code, stderr.String())
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errDisk }

var errDisk = errors.New("disk is full")

// device returns the capabilities of the device that the tests use, and the
// flag that chooses it. Without a device the test is skipped, and with -short, too.
func device(t *testing.T) (*vk.Caps, string) {
	t.Helper()
	vktest.Sequential(t)
	return concurrent(t)
}

// concurrent is device for commands with goroutines.
func concurrent(t *testing.T) (*vk.Caps, string) {
	t.Helper()
	caps := *vktest.Open(t).Caps()
	return &caps, fmt.Sprintf("--device=%d", caps.Index)
}
