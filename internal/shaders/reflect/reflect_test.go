package reflect_test

import (
	"encoding/binary"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/compile"
	"github.com/flashvk/flashvk/internal/shaders/compile/compiletest"
	"github.com/flashvk/flashvk/internal/shaders/reflect"
	"github.com/flashvk/flashvk/internal/spirv"
)

var generate = flag.Bool("generate", false, "TestParse compiles testdata/layout.comp anew")

var envs = []string{"vulkan1.2", "vulkan1.3"}

func fixture(t testing.TB, env string) []byte {
	t.Helper()
	code, err := os.ReadFile(filepath.Join("testdata", "layout."+env+".spv"))
	require.NoError(t, err)
	return code
}

// TestParse reads the modules in testdata, and what layout.comp compiles to, whatever compiler is here.
func TestParse(t *testing.T) {
	for _, env := range envs {
		got, err := reflect.Parse(fixture(t, env))
		require.NoError(t, err)
		require.Equal(t, want(), got, env)
	}
	c, err := compile.New(compiletest.Tool(t, "../../..", "glslc", *generate))
	require.NoError(t, err)
	for _, env := range envs {
		code, err := c.Compile("testdata", compile.Row{File: "layout.comp", Env: env})
		require.NoError(t, err)
		if *generate {
			require.NoError(t, os.WriteFile(filepath.Join("testdata", "layout."+env+".spv"), code[0], 0o666))
		}
		got, err := reflect.Parse(code[0])
		require.NoError(t, err)
		require.Equal(t, want(), got, env)
	}
}

func want() *reflect.Module {
	return &reflect.Module{
		PushConstants: &reflect.Block{Name: "Params", Size: 48, Members: []reflect.Member{
			{Name: "ptr", Type: "uint64_t", Offset: 0, Size: 8},
			{Name: "base", Type: "uint64_t", Offset: 8, Size: 8},
			{Name: "rows", Type: "uint", Offset: 16, Size: 4},
			{Name: "scale", Type: "float", Offset: 20, Size: 4},
			{Name: "q.batch", Type: "uint", Offset: 24, Size: 4},
			{Name: "q.head", Type: "uint", Offset: 28, Size: 4},
			{Name: "shape", Type: "uint[3]", Offset: 32, Size: 12},
			{Name: "shift", Type: "int", Offset: 44, Size: 4},
		}},
		Specs: []reflect.Spec{
			{ID: 0, Name: "WORKGROUP_SIZE", Type: "uint", Default: 128}, {ID: 1, Name: "SAVE_RSTD", Type: "bool", Default: 1},
			{ID: 2, Name: "EPS", Type: "float", Default: 1056964608}, {ID: 3, Name: "UNUSED", Type: "int", Default: 4294967294},
		},
		Bindings: []reflect.Binding{
			{Binding: 0, Names: []string{"X4", "X"}}, {Binding: 1, Names: []string{"Y"}}, {Binding: 2, Names: []string{"Rstd"}},
			{Binding: 3, Names: []string{"Table"}, Rows: &reflect.Block{Name: "Strides", Size: 8, Members: []reflect.Member{
				{Name: "batch", Type: "uint", Offset: 0, Size: 4}, {Name: "head", Type: "uint", Offset: 4, Size: 4},
			}}},
		},
	}
}

// TestUnnamedSpec puts the unnamed constant of local_size_x_id after the named
// one with the same id, and before it: the name must survive both.
func TestUnnamedSpec(t *testing.T) {
	for _, order := range [][]uint32{{10, 11}, {11, 10}} {
		list := []spirv.Instruction{
			{Op: spirv.OpName, Args: append([]uint32{10}, spirv.Literal("BM")...)}, // %11 has none
			{Op: spirv.OpDecorate, Args: []uint32{10, spirv.SpecID, 0}},
			{Op: spirv.OpDecorate, Args: []uint32{11, spirv.SpecID, 0}},
			{Op: spirv.OpTypeInt, Args: []uint32{1, 32, 0}},
		}
		for _, id := range order {
			list = append(list, spirv.Instruction{Op: spirv.OpSpecConstant, Args: []uint32{1, id, id}})
		}
		m, err := reflect.Parse(spirv.Encode(nil, append(list, spirv.Instruction{Op: spirv.OpFunction, Args: make([]uint32, 4)})))
		require.NoError(t, err)
		require.Equal(t, []reflect.Spec{{ID: 0, Name: "BM", Type: "uint", Default: 10}}, m.Specs)
	}
}

// TestParseBroken cuts and changes a module everywhere: an error or a result, no
// panic.
func TestParseBroken(t *testing.T) {
	code := fixture(t, "vulkan1.3")
	list, err := spirv.Decode(code)
	require.NoError(t, err)
	body := slices.IndexFunc(list, func(in spirv.Instruction) bool { return in.Op == spirv.OpFunction })
	declarations := len(spirv.Encode(nil, list[:body]))
	for n := range len(code) {
		_, err := reflect.Parse(code[:n])
		require.True(t, err != nil || n > declarations, "the first %d bytes", n)
	}
	for at := 0; at < len(code); at += 4 {
		for _, w := range []uint32{0, 1, 1<<16 | 5, 2<<16 | 72, 0xffffffff} {
			broken := slices.Clone(code)
			binary.LittleEndian.PutUint32(broken[at:], w)
			_, err := reflect.Parse(broken)
			require.True(t, err != nil || at > 0, "magic %#x", w)
		}
	}
}
