package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/spirv"
)

// module returns a module of instructions: opcode, then operands.
func module(instructions ...[]uint32) []byte {
	var list []spirv.Instruction
	for _, in := range instructions {
		list = append(list, spirv.Instruction{Op: spirv.Op(in[0]), Args: in[1:]})
	}
	return spirv.Encode(nil, list)
}

// TestRun compares folders whose modules differ in names alone, in an operand, in length,
// and that only one of them has.
func TestRun(t *testing.T) {
	before, after := t.TempDir(), t.TempDir()
	write := func(dir, name string, code []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".spv"), code, 0o666))
	}
	write(before, "names", module([]uint32{5, 1, 0x61}, []uint32{19, 2}, []uint32{8, 1, 2, 3}))
	write(after, "names", module([]uint32{19, 2}, []uint32{5, 1, 0x62}))
	var out strings.Builder
	same, err := run(&out, before, after, nil)
	require.NoError(t, err)
	require.True(t, same)
	require.Equal(t, "1 modules are the same, 0 are not\n", out.String())

	write(before, "operand", module([]uint32{19, 2}, []uint32{43, 1, 2, 3}))
	write(after, "operand", module([]uint32{19, 2}, []uint32{43, 1, 2, 4}))
	write(before, "longer", module([]uint32{19, 2}, []uint32{43, 1, 2, 3}))
	write(after, "longer", module([]uint32{19, 2}))
	write(before, "gone", module([]uint32{19, 2}))
	write(after, "new", module([]uint32{19, 2}))
	out.Reset()
	same, err = run(&out, before, after, nil)
	require.NoError(t, err)
	require.False(t, same)
	require.Equal(t, "gone: only in "+before+"\nlonger: 2 and 1 instructions\nnew: only in "+after+
		"\noperand: instruction 1 of 2 and 2 differs: opcode 43 and 43\n1 modules are the same, 4 are not\n", out.String())

	out.Reset()
	_, err = run(&out, before, after, []string{"gone=new"})
	require.NoError(t, err)
	require.Contains(t, out.String(), "2 modules are the same, 2 are not\n")

	_, err = run(&out, before, after, []string{"missing=new"})
	require.ErrorContains(t, err, `"missing=new" is not the name of a module`)
	_, err = run(&out, before, filepath.Join(after, "nothing"), nil)
	require.ErrorContains(t, err, "is neither a folder nor a commit")
}
