package main

import (
	"encoding/csv"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/safetensors"
)

// decodeStep is a file of run decode: two sequences of 10 and 3 keys in pages of 8, of which
// there are six, one head of keys for two of queries, two queries, 16 elements of a head.
type decodeStep struct {
	q, k, v     []float32
	lens, table []float32
}

func newDecodeStep() *decodeStep {
	return &decodeStep{
		q: bench.Normal(dtype.Float32, 2*2*2*16, 1), k: bench.Normal(dtype.Float32, 6*8*16, 2), v: bench.Normal(dtype.Float32, 6*8*16, 3),
		lens: []float32{10, 3}, table: []float32{5, 0, 2, -7},
	}
}

// write writes the file.
func (d *decodeStep) write(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "step.safetensors")
	writeOp(t, path, []bench.OpTensor{
		{Name: "q", Shape: []int{2, 2, 2, 16}}, {Name: "k_cache", Shape: []int{6, 8, 1, 16}}, {Name: "v_cache", Shape: []int{6, 8, 1, 16}},
		{Name: "seq_lens", DType: dtype.Int32, Shape: []int{2}}, {Name: "block_table", DType: dtype.Int32, Shape: []int{2, 2}},
	}, map[string][]float32{"q": d.q, "k_cache": d.k, "v_cache": d.v, "seq_lens": d.lens, "block_table": d.table})
	return path
}

// want computes o by the formula.
func (d *decodeStep) want() (o []float64) {
	for row := range 2 * 2 * 2 {
		b, i := row/4, row%2
		sum, out := 0.0, make([]float64, 16)
		for j := range int(d.lens[b]) - 2 + i + 1 {
			at := int(d.table[b*2+j/8])*8 + j%8
			s := 0.0
			for e := range 16 {
				s += float64(d.q[row*16+e]) * float64(d.k[at*16+e]) / 4
			}
			sum += math.Exp(s)
			for e := range 16 {
				out[e] += math.Exp(s) * float64(d.v[at*16+e])
			}
		}
		for _, x := range out {
			o = append(o, x/sum)
		}
	}
	return o
}

// TestRunDecode compares a step with the formula, and wants tables that are wrong to be refused.
func TestRunDecode(t *testing.T) {
	_, dev := device(t)
	d := newDecodeStep()
	out := filepath.Join(t.TempDir(), "o.safetensors")
	code, stdout, stderr := flashvk("run", "decode", "--in", d.write(t), "--out", out, dev)
	require.Zero(t, code, stderr)
	require.Empty(t, stdout)
	f, err := safetensors.Open(out)
	require.NoError(t, err)
	defer f.Close()
	require.Len(t, f.Tensors(), 2)
	got := read(t, f, "o", dtype.Float32, 2, 2, 2, 16)
	for i, want := range d.want() {
		require.InDelta(t, want, got[i], 1e-5)
	}
	read(t, f, "lse", dtype.Float32, 2, 2, 2)

	for _, x := range []struct {
		change func(d *decodeStep)
		want   string
	}{
		{func(d *decodeStep) { d.table[1] = 6 }, `tensor "block_table": page 1 of sequence 0 is 6, and not one of the 6 pages`},
		{func(d *decodeStep) { d.table[2] = -1 }, `tensor "block_table": page 0 of sequence 1 is -1, and not one of the 6 pages`},
		{func(d *decodeStep) { d.lens[1] = 17 }, `tensor "seq_lens": 17 keys of sequence 1 are not from 0 to 16, which the cache has room for`},
		{func(d *decodeStep) { d.lens[0] = -1 }, `tensor "seq_lens": -1 keys of sequence 0 are not from 0 to 16`},
	} {
		wrong := newDecodeStep()
		x.change(wrong)
		code, _, stderr := flashvk("run", "decode", "--in", wrong.write(t), "--out", out, dev)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, x.want)
	}
}

// TestBenchDecode wants the rates of a call to be those of its tokens and bytes.
func TestBenchDecode(t *testing.T) {
	_, dev := device(t)
	args := []string{"bench", "decode", dev, "--batch=3", "--heads=2", "--keys=5..40", "--queries=2", "--headdim=16", "--page-size=8", "--dtype=float32", "--count=1", "--iters=1"}
	code, stdout, stderr := flashvk(append(args, "--format=csv")...)
	require.Zero(t, code, stderr)
	rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	require.NoError(t, err)
	cell := func(name string) float64 {
		for i, x := range rows[0] {
			if x == name {
				n, err := strconv.ParseFloat(rows[1][i], 64)
				require.NoError(t, err, name)
				return n
			}
		}
		t.Fatal("no column ", name)
		return 0
	}
	seconds := cell("device_ns") / 1e9
	require.InEpsilon(t, 3*2, cell("token_per_s")*seconds, 1e-9)
	const keys = 5 + 22 + 40
	require.InEpsilon(t, keys*2*(16+16)*4, cell("kv_byte_per_s")*seconds, 1e-9)
	require.InEpsilon(t, cell("kv_byte_per_s")/cell("copy_byte_per_s"), cell("share_of_copy"), 1e-9)
	require.Greater(t, cell("bytes"), cell("kv_byte_per_s")*seconds)

	code, stdout, stderr = flashvk(append(args, "--wide", "--config=scalar,rows=2,subgroups=2,groups=3")...)
	require.Zero(t, code, stderr)
	for _, want := range []string{"batch 3, heads 2, kv-heads 2, keys 5..40, queries 2, headdim 16, pages of 8", " tokens ", " of copy ", "scalar,rows=2,subgroups=2,groups=3"} {
		require.Contains(t, stdout, want)
	}
}

// TestBenchDecodeParts measures a prompt and the steps after it, and wants rates to be those of all
// tokens and of the keys that each step sees.
func TestBenchDecodeParts(t *testing.T) {
	_, dev := device(t)
	args := []string{"bench", "decode", dev, "--batch=2", "--heads=2", "--kv-heads=1", "--keys=9", "--queries=2", "--headdim=16", "--dtype=float32", "--count=1", "--iters=1", "--format=csv"}
	code, stdout, stderr := flashvk(append(args, "--part=prefill,append,step,decode", "--steps=3")...)
	require.Zero(t, code, stderr)
	rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 5)
	cell := func(row int, name string) string {
		i := slices.Index(rows[0], name)
		require.GreaterOrEqual(t, i, 0, name)
		return rows[row][i]
	}
	const row = 2 * (16 + 16) * 4 // a key and a value of all sequences
	for i, want := range []struct {
		part, steps string
		tokens, kv  float64
	}{
		{"prefill", "1", 2 * 9, 2 * 9 * row},
		{"append", "1", 2 * 2, 2*2*row + 2*2*2*2*16*4 + 2*4 + 2*2*16*4}, // new rows and queries, read and written, lengths, angles
		{"step", "3", 3 * 2 * 2, (11 + 13 + 15) * row},
		{"decode", "1", 2 * 2, 9 * row},
	} {
		require.Equal(t, want.part, cell(i+1, "part"))
		require.Equal(t, want.steps, cell(i+1, "steps"))
		require.Equal(t, "9", cell(i+1, "keys"))
		require.Equal(t, "ok", cell(i+1, "status"))
		number := func(name string) float64 {
			x, err := strconv.ParseFloat(cell(i+1, name), 64)
			require.NoError(t, err)
			return x
		}
		seconds := number("device_ns") / 1e9
		require.InEpsilon(t, want.tokens, number("token_per_s")*seconds, 1e-9, want.part)
		require.InEpsilon(t, want.kv, number("kv_byte_per_s")*seconds, 1e-9, want.part)
	}
	code, _, stderr = flashvk("bench", "overhead", "decode", dev, "--part=append,step")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "bench overhead measures one problem, not 2")
}

// TestDecodeUsage has flags that make no sense.
func TestDecodeUsage(t *testing.T) {
	for flags, want := range map[string]string{
		"--keys=5..3":                  "not a range: 3 is less than 5",
		"--keys=1,x":                   "not an integer",
		"--keys=-1":                    "not from 0 to 1073741823",
		"--batch=0":                    "batch=0 is not positive",
		"--batch=2000000":              "--batch 2000000 is more than 1048576 sequences",
		"--page-size=12":               "page_size=12 is not a power of two from 8",
		"--queries=65":                 "seq_q=65 is larger than the 64 of decoding",
		"--value-dim=0":                "--value-dim 0 is not positive",
		"--layout=x":                   "not one of nhd, hnd",
		"--config=x":                   `"x" does not begin with a path`,
		"--config=scalar,a=1,b=2,c=3":  `"a=1" is not one of its choices`,
		"--part=x":                     "not one of decode, append, step, prefill",
		"--part=step,step":             `"step" occurs twice`,
		"--steps=2":                    "--steps needs --part step",
		"--part=step --steps=0":        "--steps 0 is not in 1..1000",
		"--part=prefill --page-size=8": "--part prefill reads a cache without pages: leave --page-size out",
		"--part=prefill --keys=3..4":   "--part prefill is of prompts of one length",
		"--part=prefill --keys=0":      "seq_q=0 is not positive",
		"--suite=decode --part=step":   "--suite decode and --part contradict each other",
		"--suite=decode --keys=4":      "--suite decode and --keys contradict each other",
		"--window=3,3 --causal=false":  "decoding has no window with a right side but without causal",
		"--softcap=0":                  "--softcap 0 is not possible; leave it out for none",
	} {
		code, stdout, stderr := flashvk(append([]string{"bench", "decode"}, strings.Fields(flags)...)...)
		require.Equal(t, 2, code, flags)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
	}
}
