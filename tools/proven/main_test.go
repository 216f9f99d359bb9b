package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestAddRows reads the rows of issues back, and finds each in the table of its kernel: before the row of any
// device, or instead of a row of the same family.
func TestAddRows(t *testing.T) {
	const fwd, bwd, products = "attention/fwd_table.go", "attention/bwd_table.go", "internal/pipelines/gemm/engine/tuning.go"
	square := attention.Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: 128, DType: dtype.Float16}
	product := engine.Problem{Batch: 1, M: 4096, N: 4096, K: 4096, DType: dtype.Float32, Out: dtype.Float32, Alpha: 1}
	config, backward := table.Must[attention.Config], table.Must[attention.BackwardConfig]
	for _, c := range []struct {
		card, kernel    string
		pass            kit.Pass
		problem, config any
		file, row       string // where the row stands, and what follows it
		after           string
	}{
		{"NVIDIA H200", "attention", kit.Forward, square, config("coopmat sg4 rt1 bn32 prefetch peel splits2"), fwd,
			`{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Fill: 1.5, Config: words("coopmat sg4 rt1 bn32 prefetch peel")}, // NVIDIA H200, `,
			`{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat sg4 rt1 bn64 prefetch peel")},`},
		{"NVIDIA GeForce RTX 4090\nvar x = 1", "attention", kit.Backward, square, backward("scalar dkv 16x16 t8x8 depth16 rows8 dq 16x16 t8x8 depth16 rows8"), bwd,
			`{Family: "ada", Shape: shape{headDim: 256}, Config: words("scalar dkv 16x16 t8x8 depth16 rows8 dq 16x16 t8x8 depth16 rows8")}, // NVIDIA GeForce RTX 4090 var x = 1, `,
			`{Shape: shape{headDim: 256}, Config: words("scalar `},
		{"NVIDIA GeForce RTX 4090", "gemm", kit.Forward, product, table.Must[engine.Config]("scalar 32x32 t8x8 k8 g2 splits3"), products,
			`Config: words("scalar 32x32 t8x8 k8 g2")}, // NVIDIA GeForce RTX 4090, `, `Config: words("scalar `},
		{"NVIDIA H200", "attention", kit.Forward, square, config("coopmat sg8 rt2 bn32 prefetch peel loadahead4"), "", "the built-in row has it", ""},
		{"NVIDIA H200", "norm", kit.Forward, norm.Problem{Rows: 8, Cols: 64, DType: dtype.Float16, Eps: 1e-5}, table.Must[norm.Config]("wg128 rows1 groups4"), "", "norm forward has a rule instead of rows", ""},
		{"Voodoo 2", "attention", kit.Forward, square, config("coopmat sg4 rt1 bn32 prefetch peel"), "", `"Voodoo 2" is of no family of GPUs`, ""},
	} {
		t.Run(c.kernel+" "+c.card, func(t *testing.T) {
			caps := chipstest.H200()
			caps.Name = c.card
			caps.SubgroupOps |= vk.SubgroupArithmetic
			caps.MaxAllocationBytes, caps.MaxBufferBytes, caps.MaxStorageBuffers, caps.MaxPushConstantsBytes = 1<<32, 1<<32, 16, 256
			rows := kit.NewTuning(caps)
			require.NoError(t, rows.Add(c.kernel, c.pass, c.problem, c.config, 1.5e6))
			var data strings.Builder
			require.NoError(t, rows.Write(&data))
			device, err := json.Marshal(caps)
			require.NoError(t, err)
			issue := "**card**\n" + text.Fold(text.FoldDevice, "json", string(device)+"\n") + text.Fold(text.FoldRows, "json", data.String())

			root, before := t.TempDir(), map[string]string{}
			for _, name := range []string{fwd, bwd, products} {
				source, err := os.ReadFile("../../" + name)
				require.NoError(t, err)
				before[name] = string(source)
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o777))
				require.NoError(t, os.WriteFile(filepath.Join(root, name), source, 0o666))
			}
			var said strings.Builder
			require.NoError(t, addRows(&said, root, strings.ReplaceAll(issue, "\n", "\r\n")))
			for name, old := range before {
				source, err := os.ReadFile(filepath.Join(root, name))
				require.NoError(t, err)
				if name != c.file {
					require.Equal(t, old, string(source), name)
					continue
				}
				lines := strings.Split(string(source), "\n")
				at := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, c.row) })
				require.Positive(t, at, "%s\n%s", said.String(), source)
				require.Contains(t, lines[at+1], c.after)
				require.Contains(t, said.String(), name+":")
			}
			if c.file == "" {
				require.Contains(t, said.String(), "not added: "+c.row)
			} else { // once more: the row that decided is gone, or another one is there
				said.Reset()
				require.NoError(t, addRows(&said, root, issue))
				require.Regexp(t, "not added: (no table has the row|.* has a row for the same problems)", said.String())
			}
		})
	}
	require.ErrorContains(t, addRows(&strings.Builder{}, ".", text.Fold(text.FoldRows, "json", "{}\n")), "the fold Device: unexpected end of JSON input")
}
