package attention

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/reflect"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// page returns the text of a page of the repository, or skips the test where only its
// binary is.
func page(t *testing.T, name string) string {
	text, err := os.ReadFile("../" + name)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s is not here", name)
	}
	require.NoError(t, err)
	return string(text)
}

// TestReadmeTable compares the table of formats in README.md with Supports.
func TestReadmeTable(t *testing.T) {
	text, table := page(t, "README.md"), supportTable(t)
	require.True(t, strings.Contains(text, table), "README.md does not have the table\n%s", table)
}

// supportTable lists, for some devices, the formats that each path takes.
func supportTable(t *testing.T) string {
	noMatrices := gpu("no matrices", 0, 0, 32, 32<<10, 1024, 0, 0, 0, false)
	columns := []struct {
		title string
		caps  vk.Caps
	}{
		{"NVIDIA H200", fakeNamed(t, "NVIDIA H200")},
		{"lavapipe", fakeNamed(t, "llvmpipe (LLVM 20.1.2, 256 bits)")},
		{"a GPU without matrices", noMatrices},
		{"Vulkan 1.2's least", leastDevice()},
	}
	var b strings.Builder
	b.WriteString("| path |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", 1+len(columns)) + "\n")
	for _, impl := range Impls() {
		fmt.Fprintf(&b, "| `%v` |", impl)
		for i := range columns {
			fmt.Fprintf(&b, " %s |", supportCell(&columns[i].caps, impl))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestReadmeNeeds compares what docs/drivers.md and docs/kernels.md say of push constants and
// storage buffers with the modules.
func TestReadmeNeeds(t *testing.T) {
	needs := func(kernel, typ string) (bytes, buffers int) {
		module, err := shaders.Get(kernel, typ)
		require.NoError(t, err)
		m, err := reflect.Parse(module.SPIRV)
		require.NoError(t, err)
		return m.PushConstants.Size, len(m.Bindings)
	}
	forward, forwardBuffers := needs("attention_fwd_scalar_features", "f16")
	backward, backwardBuffers := needs("attention_bwd_dkv_scalar_features", "f16")
	stored, storedBuffers := needs("attention_bwd_dq_coopmat_stored_features", "f16")
	decode, decodeBuffers := needs("attention_decode", "f16")
	cache8, cache8Buffers := needs("attention_decode_cache8", "f16")
	unwrapped := func(name string) string { return strings.Join(strings.Fields(page(t, name)), " ") }
	drivers := unwrapped("docs/drivers.md")
	require.Contains(t, drivers, fmt.Sprintf("features of attention need %d bytes of push constants (Vulkan guarantees 128) and %d storage buffers, in the backward pass %d and %d, with stored weights %d and %d.",
		forward, forwardBuffers, backward, backwardBuffers, stored, storedBuffers))
	require.Contains(t, drivers, fmt.Sprintf("`decode` needs %d bytes of push constants and %d storage buffers, with a cache in 8 bits %d and %d.", decode, decodeBuffers, cache8, cache8Buffers))
	require.Contains(t, unwrapped("docs/kernels.md"), fmt.Sprintf("Features need %d bytes of push constants (Vulkan guarantees 128; an H200 and lavapipe have 256) and %d storage buffers.", forward, forwardBuffers))
}

func fakeNamed(t *testing.T, name string) vk.Caps {
	for _, d := range fakeDevices() {
		if d.caps.Name == name {
			return d.caps
		}
	}
	t.Fatalf("no fake device %s", name)
	return vk.Caps{}
}

// supportCell lists the formats that a path takes; where not with every
// head_dim, mask, group and length, with the largest head_dim for which it does.
func supportCell(caps *vk.Caps, impl Impl) string {
	var list []string
	for _, t := range []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32} {
		largest := 0
		for headDim := 8; headDim <= 256 && supportsAll(caps, impl, t, headDim); headDim += 8 {
			largest = headDim
		}
		switch largest {
		case 256:
			list = append(list, t.String())
		case 0:
		default:
			list = append(list, fmt.Sprintf("%v to head_dim %d", t, largest))
		}
	}
	if len(list) == 0 {
		return "–"
	}
	return strings.Join(list, ", ")
}

// supportsAll reports whether a path takes every mask, ratio of heads and pair
// of lengths with a format and a head_dim.
func supportsAll(caps *vk.Caps, impl Impl, t dtype.DType, headDim int) bool {
	for _, mask := range []Problem{{}, {Causal: true}, {Causal: true, CausalAlign: TopLeft}, {Scale: -0.3}} {
		for _, kvHeads := range []int{8, 4, 1} {
			for _, seq := range [][2]int{{1, 1}, {1, 4096}, {4096, 1}, {4096, 4096}} {
				p := mask
				p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV, p.HeadDim, p.DType = 4, 8, kvHeads, seq[0], seq[1], headDim, t
				if Supports(caps, p, kit.Forward, Options{Impl: impl}) != nil {
					return false
				}
			}
		}
	}
	return true
}

// TestReadmeFeatures compares the paths in docs/kernels.md's table of features with
// Supports.
func TestReadmeFeatures(t *testing.T) {
	text := page(t, "docs/kernels.md")
	caps := fakeNamed(t, "NVIDIA H200")
	for _, row := range []struct {
		start string
		p     Problem
	}{
		{"| sliding window, left and right | `Window` | |", Problem{Window: Window{On: true, Left: 5, Right: 5}}},
		{"| logit softcap | `Softcap` | |", Problem{Softcap: 30}},
		{"| ALiBi, per head or per batch and head | `ALiBi` | `alibi_slopes` |", Problem{ALiBi: ALiBiPerBatchHead}},
		{"| additive bias, float32 or the input's format, batch, heads and rows shared or not | `Bias` | `bias` |", Problem{Bias: Bias{On: true, Heads: true}}},
		{"| key mask | `KeyMask` | `key_mask` |", Problem{KeyMask: true}},
		{"| attention sinks | `Sinks` | `sinks` |", Problem{Sinks: true}},
		{"| packed sequences of different lengths | `Varlen` | `cu_seqlens_q`, `cu_seqlens_kv` |", Problem{Varlen: Varlen{On: true, TotalQ: 100, TotalKV: 100}}},
		{"| head_dim of V and O unlike Q and K | `ValueDim` | |", Problem{ValueDim: 128}},
		{"| dropout, the same for the same seed (Philox) | `Dropout` | |", Problem{Dropout: Dropout{P: 0.1, Seeded: true}}},
	} {
		p := row.p
		p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV, p.HeadDim = 4, 8, 8, 64, 64, 64
		var paths []string
		for _, impl := range Impls() {
			every := true
			for _, p.DType = range dtype.All() {
				every = every && Supports(&caps, p, kit.Forward, Options{Impl: impl}) == nil
			}
			if every {
				paths = append(paths, impl.String())
			}
		}
		line := fmt.Sprintf("%s %s |\n", row.start, strings.Join(paths, ", "))
		require.True(t, strings.Contains(text, line), "docs/kernels.md does not have the line\n%s", line)
	}
}

// TestReadmeExample says that the Go code in README.md is the code of the examples,
// which are compiled and run.
func TestReadmeExample(t *testing.T) {
	text := page(t, "README.md")
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "example_test.go", source, parser.ParseComments)
	require.NoError(t, err)
	found := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != "ExampleForwardHost" {
			continue
		}
		from, to := files.Position(f.Body.Lbrace).Offset+1, files.Position(f.Body.Rbrace).Offset
		body, _, _ := bytes.Cut(source[from:to], []byte("\t// Output:"))
		code := strings.TrimSpace(strings.ReplaceAll(string(body), "\n\t", "\n"))
		require.True(t, strings.Contains(text, "```go\n"+code+"\n```\n"), "README.md does not have the code\n%s", code)
		found++
	}
	require.Equal(t, 1, found)
}
