package compile

import (
	"encoding/binary"
	"strings"
	"testing"
)

// module returns the words of a module with a capability and an entry point of function 4.
func module(capability uint32) []byte {
	code := make([]byte, spirvHeaderWords*4)
	code = appendInstruction(code, opCapability, capability)
	code = appendInstruction(code, opEntryPoint, 5, 4, 0x6e69616d, 0)
	return appendInstruction(code, opExecutionMode, 4, 17, 8, 1, 1)
}

// TestReconverge says which modules reconverge maximally, and that what they get stands where
// SPIR-V wants it: the extension behind the capabilities, the mode behind the entry point.
func TestReconverge(t *testing.T) {
	for capability, want := range map[uint32]bool{1: false, 60: false, 61: true, 63: true, 68: true, 69: false, capabilityCooperativeMatrix: true} {
		code := module(capability)
		got := reconverge(code)
		if !want {
			if string(got) != string(code) {
				t.Errorf("capability %d: the module changed", capability)
			}
			continue
		}
		var ops []uint32
		for at := spirvHeaderWords * 4; at < len(got); {
			first := binary.LittleEndian.Uint32(got[at:])
			ops = append(ops, first&0xffff)
			at += int(first>>16) * 4
		}
		if len(ops) != 5 || ops[0] != opCapability || ops[1] != opExtension || ops[2] != opEntryPoint || ops[3] != opExecutionMode || ops[4] != opExecutionMode {
			t.Errorf("capability %d: instructions %v", capability, ops)
		}
		if !strings.Contains(string(got), reconvergenceExtension+"\x00") {
			t.Errorf("capability %d: no extension", capability)
		}
	}
	if got := reconverge([]byte("no module")); string(got) != "no module" {
		t.Errorf("what is no module became %q", got)
	}
}
