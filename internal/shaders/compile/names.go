package compile

import (
	"bytes"
	"encoding/binary"
)

const (
	spirvHeaderWords = 5
	opName           = 5
)

// dropAddressNames removes the debug names that hold an address of the
// compiler's memory: glslang writes one into the mangled name of a function
// whose argument has an array sized by a specialization constant
// ("product_nt(struct-TileNT-f1[s0x5555573]1;"), and so makes other bytes in
// every run. Nothing reads the names of functions.
func dropAddressNames(code []byte) []byte {
	at := spirvHeaderWords * 4
	if len(code) < at {
		return code
	}
	out := append([]byte(nil), code[:at]...)
	for at+4 <= len(code) {
		first := binary.LittleEndian.Uint32(code[at:])
		end := at + int(first>>16)*4
		if end <= at || end > len(code) {
			return code // not SPIR-V: the validator says so better
		}
		if first&0xffff != opName || !bytes.Contains(code[at:end], []byte("[s0x")) {
			out = append(out, code[at:end]...)
		}
		at = end
	}
	return out
}
