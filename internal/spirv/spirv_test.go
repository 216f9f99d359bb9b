package spirv

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModule reads a module, writes it, and refuses what is none.
func TestModule(t *testing.T) {
	code, err := os.ReadFile("../shaders/reflect/testdata/layout.vulkan1.3.spv")
	require.NoError(t, err)
	m, err := Parse(code)
	require.NoError(t, err)
	require.True(t, bytes.Equal(code, Encode(code, m.Instructions)))
	require.Equal(t, byte(3), Encode(nil, nil)[0])
	for id, x := range m.IDs {
		if x.Name == "Strides" {
			require.Equal(t, OpTypeStruct, m.At(id).Op)
			require.Equal(t, map[uint32]string{0: "batch", 1: "head"}, x.MemberNames)
			require.Equal(t, uint32(4), x.MemberDecorations[[2]uint32{1, Offset}])
		}
	}
	for name, c := range map[string]struct {
		code []byte
		want string
	}{
		"empty":      {nil, "not a SPIR-V module (0 bytes)"},
		"text":       {[]byte("#version 450, a shader"), "not a SPIR-V module"},
		"odd length": {code[:len(code)-1], "not a SPIR-V module"},
		"cut":        {code[:24], "truncated SPIR-V module"},
		"short":      {Encode(nil, []Instruction{{OpTypeInt, []uint32{1, 32}}}), "truncated SPIR-V module"},
	} {
		_, err := Parse(c.code)
		require.ErrorContains(t, err, c.want, name)
	}
	for _, text := range []string{"", "abc", "abcd", "SPV_KHR_maximal_reconvergence"} {
		require.Equal(t, text, Text(Literal(text)))
		require.Len(t, Literal(text), len(text)/4+1)
	}
}

// TestHash says that a module's hash stays if names, lines and strings change, and becomes another
// with one number, a lost instruction, or another version.
func TestHash(t *testing.T) {
	code, err := os.ReadFile("../shaders/reflect/testdata/layout.vulkan1.3.spv")
	require.NoError(t, err)
	list, err := Decode(code)
	require.NoError(t, err)
	where := func(op Op) int {
		return slices.IndexFunc(list, func(in Instruction) bool { return in.Op == op })
	}
	name, constant := list[where(OpName)].Args, list[where(OpConstant)].Args
	renamed := slices.Clone(list)
	renamed[where(OpName)].Args = append(slices.Clone(name[:1]), Literal("another, which is longer")...)
	renamed = slices.DeleteFunc(renamed, func(in Instruction) bool { return in.Op == OpMemberName })
	renamed = append(renamed, Instruction{OpLine, []uint32{1, 2, 3}}, Instruction{Op: 317})
	require.Equal(t, Hash(code), Hash(Encode(code, renamed)))

	require.NotEqual(t, Hash(code), Hash(Encode(code, list[:len(list)-1])))
	require.NotEqual(t, Hash(code), Hash(Encode(nil, list)), "without version and bound")
	constant[2]++
	require.NotEqual(t, Hash(code), Hash(Encode(code, list)))
	require.NotEqual(t, Hash([]byte("abc")), Hash(nil), "no modules")
}
