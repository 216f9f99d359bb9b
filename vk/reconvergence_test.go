package vk

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// words returns a module of these instructions: opcode, then operands.
func words(instructions ...[]uint32) []byte {
	code := binary.LittleEndian.AppendUint32(nil, spirvMagic)
	code = append(code, make([]byte, 16)...)
	for _, in := range instructions {
		code = binary.LittleEndian.AppendUint32(code, uint32(len(in))<<16|in[0])
		for _, x := range in[1:] {
			code = binary.LittleEndian.AppendUint32(code, x)
		}
	}
	return code
}

// literal returns the words of a string.
func literal(text string) (list []uint32) {
	b := append([]byte(text), make([]byte, 4-len(text)%4)...)
	for ; len(b) > 0; b = b[4:] {
		list = append(list, binary.LittleEndian.Uint32(b))
	}
	return list
}

// TestWithoutReconvergence takes out the extension and the execution mode, and nothing that
// looks like them.
func TestWithoutReconvergence(t *testing.T) {
	extension := func(name string) []uint32 { return append([]uint32{opExtension}, literal(name)...) }
	other := [][]uint32{
		{17, 1},
		extension("SPV_KHR_maximal"),
		{opEntryPoint, modelGLCompute, 4, 0x6e69616d, 0},
		{opExecutionMode, 4, modeLocalSize, 8, 1, 1},
		{opConstant, 1, 2, modeMaximallyReconverges},
	}
	full := [][]uint32{other[0], extension("SPV_KHR_maximal_reconvergence"), other[1], other[2], {opExecutionMode, 4, modeMaximallyReconverges}, other[3], other[4]}
	require.Equal(t, words(other...), withoutReconvergence(words(full...)))
	require.Equal(t, words(other...), withoutReconvergence(words(other...)))
}
