package vk

import (
	"encoding/binary"
	"fmt"
	"sort"
)

// moduleInfo is what NewKernel needs to know of a SPIR-V module.
type moduleInfo struct {
	entry     string // name of the compute entry point
	bindings  int    // storage buffers 0..bindings-1 of descriptor set 0
	pushConst bool   // whether there is a push-constant block
}

// SPIR-V numbers in use.
const (
	spirvMagic = 0x07230203

	opEntryPoint = 15
	opVariable   = 59
	opDecorate   = 71

	modelGLCompute = 5

	decorationBinding       = 33
	decorationDescriptorSet = 34

	classUniformConstant = 0
	classUniform         = 2
	classPushConstant    = 9
	classStorageBuffer   = 12
)

// variable collects what is said about one id.
type variable struct {
	class        uint32
	set, binding uint32
	hasBinding   bool
}

// scanModule reads the interface of a compute shader and refuses what Dispatch
// could not bind: anything but storage buffers 0..n-1 of set 0.
func scanModule(code []byte) (moduleInfo, error) {
	var m moduleInfo
	if len(code) < 20 || len(code)%4 != 0 || binary.LittleEndian.Uint32(code) != spirvMagic {
		return m, fmt.Errorf("not a SPIR-V module (%d bytes)", len(code))
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	vars := map[uint32]*variable{}
	at := func(id uint32) *variable {
		if vars[id] == nil {
			vars[id] = &variable{class: ^uint32(0)}
		}
		return vars[id]
	}
	for rest := words[5:]; len(rest) > 0; {
		n, op := int(rest[0]>>16), rest[0]&0xffff
		if n == 0 || n > len(rest) {
			return m, fmt.Errorf("truncated SPIR-V module")
		}
		in := rest[:n]
		rest = rest[n:]
		switch {
		case op == opEntryPoint && n > 3 && in[1] == modelGLCompute:
			m.entry = literalString(in[3:])
		case op == opDecorate && n > 3 && in[2] == decorationBinding:
			v := at(in[1])
			v.binding, v.hasBinding = in[3], true
		case op == opDecorate && n > 3 && in[2] == decorationDescriptorSet:
			at(in[1]).set = in[3]
		case op == opVariable && n > 3:
			at(in[2]).class = in[3]
		}
	}
	if m.entry == "" {
		return m, fmt.Errorf("no compute entry point")
	}
	return m, m.collect(vars)
}

// collect checks and counts the module's resources.
func (m *moduleInfo) collect(vars map[uint32]*variable) error {
	seen := map[uint32]bool{}
	for _, v := range vars {
		switch v.class {
		case classPushConstant:
			m.pushConst = true
		case classUniform, classUniformConstant:
			return fmt.Errorf("binding %d of set %d is not a storage buffer", v.binding, v.set)
		case classStorageBuffer:
			if !v.hasBinding || v.set != 0 {
				return fmt.Errorf("storage buffer at binding %d of set %d, only set 0 is bound", v.binding, v.set)
			}
			seen[v.binding] = true // one binding may have several views
		}
	}
	var list []int
	for b := range seen {
		list = append(list, int(b))
	}
	sort.Ints(list)
	for i, b := range list {
		if i != b {
			return fmt.Errorf("bindings %v are not 0 to %d", list, len(list)-1)
		}
	}
	m.bindings = len(list)
	return nil
}

// literalString decodes a NUL-terminated string packed into words.
func literalString(words []uint32) string {
	var s []byte
	for _, w := range words {
		for range 4 {
			if byte(w) == 0 {
				return string(s)
			}
			s = append(s, byte(w))
			w >>= 8
		}
	}
	return string(s)
}
