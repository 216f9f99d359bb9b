package cli

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/safetensors"
)

// An entry is a tensor of a file to be made; its data are any that package binary writes.
type entry struct {
	dtype safetensors.DType
	shape []int
	data  any
}

// file makes a file of tensors.
func file(t *testing.T, tensors map[string]entry) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.safetensors")
	var list []safetensors.Tensor
	data := map[string]any{}
	for name, x := range tensors {
		list, data[name] = append(list, safetensors.Tensor{Name: name, DType: x.dtype, Shape: x.shape}), x.data
	}
	filetest.Write(t, path, list, data)
	return path
}

// TestRunNames says that a file with another program's names gives the same results as one with
// ours. The file has further tensors, offsets of 64 bits like PyTorch's, and flash-attn's
// cu_seqlens_k.
func TestRunNames(t *testing.T) {
	_, dev := device(t)
	const total = 11
	r := rand.New(rand.NewPCG(22, 3))
	x := func() entry {
		return entry{safetensors.F32, []int{total, heads, headDim}, draw(r, total*heads*headDim)}
	}
	q, k, v := x(), x(), x()
	ours := file(t, map[string]entry{"q": q, "k": k, "v": v, "cu_seqlens_q": {"I32", []int{3}, []int32{0, 4, total}}, "cu_seqlens_kv": {"I32", []int{3}, []int32{0, 5, total}}})
	theirs := file(t, map[string]entry{
		"blk.0.attn.q": q, "blk.0.attn.k": k, "blk.0.attn,v": v, "q": k, "blk.0.ffn.up": v, "position": {"I64", []int{1}, []int64{1 << 40}},
		"cu_seqlens_q": {"I64", []int{3}, []int64{0, 4, total}}, "cu_seqlens_k": {"I64", []int{3}, []int64{0, 5, total}},
	})
	run := func(in string, more ...string) (code int, output []byte, message string) {
		out := filepath.Join(t.TempDir(), "out.safetensors")
		code, _, stderr := flashvk(t, append([]string{"run", "attention", dev, "--in", in, "--out", out, "--no-tuning"}, more...)...)
		output, _ = os.ReadFile(out)
		return code, output, oneError(t, stderr)
	}
	names := []string{"--map", "q=blk.0.attn.q,k=blk.0.attn.k", "--map", "v=blk.0.attn,v"}
	code, want, message := run(ours)
	require.Zero(t, code, message)
	code, got, message := run(theirs, append(names, "--ignore-extra")...)
	require.Zero(t, code, message)
	require.Equal(t, want, got)

	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{1, `tensor "position" is not one of q, k, v, `, names},
		{1, `tensor "k" is missing`, []string{"--ignore-extra"}},
		{1, `--map q=nosuch: there is no tensor "nosuch", but "cu_seqlens_k", `, []string{"--map", "q=nosuch"}},
		{1, `--map w=q: w is not one of the tensors read, q, k, v, `, append(names, "--ignore-extra", "--map", "w=q")},
		{1, `--map do=q: do is not one of the tensors read, `, append(names, "--ignore-extra", "--map", "do=q")},
		{2, `"q" occurs twice`, append(names, "--map", "q=q")},
		{2, `"q" is not NAME=NAME IN THE FILE`, []string{"--map", "q"}},
		{2, `"=q" is not NAME=NAME IN THE FILE`, []string{"--map", "=q"}},
		{2, "is the input, whose other tensors would be lost", []string{"--ignore-extra", "--out", theirs}},
	} {
		code, output, message := run(theirs, c.args...)
		require.Equal(t, c.code, code, "%q: %s", c.args, message)
		require.Contains(t, message, c.want, "%q", c.args)
		require.Empty(t, output)
	}
	wide := file(t, map[string]entry{"q": q, "k": k, "v": v, "cu_seqlens_q": {"I64", []int{3}, []int64{0, 4, 1 << 32}}, "cu_seqlens_k": {"I64", []int{3}, []int64{0, 5, total}}})
	code, _, message = run(wide)
	require.Equal(t, 1, code)
	require.Contains(t, message, `tensor "cu_seqlens_q": 4294967296 does not fit 32 bits`)
}

// TestRunCorner wants a note about the other corner if no flag says to which corner a causal mask
// is aligned, and it matters.
func TestRunCorner(t *testing.T) {
	_, dev := device(t)
	r := rand.New(rand.NewPCG(22, 4))
	x := func(seq int) entry {
		return entry{safetensors.F32, []int{1, 1, seq, headDim}, draw(r, seq*headDim)}
	}
	square, longer := file(t, map[string]entry{"q": x(3), "k": x(3), "v": x(3)}), file(t, map[string]entry{"q": x(3), "k": x(5), "v": x(5)})
	for _, c := range []struct {
		in   string
		args []string
		said bool
	}{
		{square, []string{"--causal"}, false},
		{longer, nil, false},
		{longer, []string{"--causal"}, true},
		{longer, []string{"--causal", "--causal-align", "bottom-right"}, false},
		{longer, []string{"--causal", "--causal-align", "top-left"}, false},
	} {
		code, _, stderr := flashvk(t, append([]string{"run", "attention", dev, "--in", c.in, "--out", filepath.Join(t.TempDir(), "o")}, c.args...)...)
		require.Zero(t, code, stderr)
		oneError(t, stderr)
		if c.said {
			require.Contains(t, stderr, "WARNING: the causal mask of 3 queries and 5 keys ends in the bottom right corner, as flash-attn has it; is_causal=True of PyTorch")
		} else {
			require.NotContains(t, stderr, "corner")
		}
	}
}
