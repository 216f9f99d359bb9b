// Package reflect reads from a SPIR-V module what the host must agree with.
//
//	layout(push_constant, scalar) uniform Params {…}   PushConstants  OpMemberName, OpMemberDecorate Offset
//	layout(constant_id = 0) const uint WORKGROUP_SIZE  Specs          OpName, OpDecorate SpecId
//	layout(binding = 0) buffer X {…}                   Bindings       OpName, OpDecorate Binding, DescriptorSet
//	layout(binding = 0) buffer X { Row rows[]; }       Bindings.Rows  as push constants, and OpDecorate ArrayStride
//
// It reads only the declarations in front of the first function, and relies on
// the debug names that glslc writes (-g0 would drop them).
package reflect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// A Module is the host's view of a SPIR-V module.
type Module struct {
	PushConstants *Block    // nil if the module has none
	Specs         []Spec    // in order of ID
	Bindings      []Binding // in order of set, then binding
}

// A Block is the push-constant block, or the row of a table.
type Block struct {
	Name    string // of the GLSL block or struct
	Members []Member
	Size    int // bytes, up to the end of the last member; of a row, up to the next
}

// A Member is one scalar, vector or array of a block. The members of a nested
// struct are members of the block, with names such as q.batch_stride.
type Member struct {
	Name   string
	Type   string // in GLSL's words: uint, int, float, uint64_t, uint[4], vec3 …
	Offset int    // bytes
	Size   int    // bytes
}

// A Spec is a specialization constant.
type Spec struct {
	ID      uint32
	Name    string
	Type    string // uint, int, float, bool …
	Default uint64 // bits
}

// A Binding is a descriptor.
type Binding struct {
	Set, Binding uint32
	// Names are the block names of all variables at this binding: more than one
	// where a shader reads one buffer as several types. They are in the module's
	// order, which is that of first use, not of declaration.
	Names []string
	// Rows is the struct that the binding is an array of and nothing else, as in
	// `buffer Table { Row rows[]; }`; nil for anything else.
	Rows *Block
}

// Parse reads a module.
func Parse(code []byte) (*Module, error) {
	d, err := decode(code)
	if err != nil {
		return nil, err
	}
	m := &Module{}
	if err := d.specs(m); err != nil {
		return nil, err
	}
	for _, v := range d.variables {
		if err := d.variable(m, v); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(m.Bindings, func(a, b Binding) int {
		return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Binding, b.Binding))
	})
	return m, nil
}

// specs adds the specialization constants. glslang declares a second, unnamed
// constant for local_size_x_id with the SpecId of the one that the shader names:
// the name wins, whichever comes first.
func (d *decoder) specs(m *Module) error {
	for _, c := range d.specConstants {
		id, ok := d.specID[c.id]
		if !ok {
			continue
		}
		typ, _, err := d.typeOf(c.typ)
		if err != nil {
			return err
		}
		s := Spec{ID: id, Name: d.names[c.id], Type: typ, Default: c.value}
		i := slices.IndexFunc(m.Specs, func(s Spec) bool { return s.ID == id })
		switch {
		case i < 0:
			m.Specs = append(m.Specs, s)
		case m.Specs[i].Name == "":
			m.Specs[i] = s
		case s.Name != "" && s.Name != m.Specs[i].Name:
			return fmt.Errorf("reflect: constant_id %d is both %s and %s", id, m.Specs[i].Name, s.Name)
		}
	}
	slices.SortFunc(m.Specs, func(a, b Spec) int { return cmp.Compare(a.ID, b.ID) })
	return nil
}

// variable adds a variable of the module's interface.
func (d *decoder) variable(m *Module, v variable) error {
	pointer, ok := d.types[v.typ]
	if !ok || pointer.op != opTypePointer {
		return fmt.Errorf("reflect: variable %%%d is not of a pointer type", v.id)
	}
	block := pointer.elem
	if v.class == classPushConstant {
		b := &Block{Name: d.names[block]}
		if err := d.members(b, block, "", 0, 0); err != nil {
			return err
		}
		m.PushConstants = b
		return nil
	}
	binding, ok := d.binding[v.id]
	if !ok {
		return nil
	}
	name := d.names[block]
	if t := d.types[block]; t.op != opTypeStruct {
		name = d.names[v.id] // an image or a sampler has no block
	}
	set := d.set[v.id]
	for i := range m.Bindings {
		if b := &m.Bindings[i]; b.Set == set && b.Binding == binding {
			b.Names = append(b.Names, name)
			return nil
		}
	}
	rows, err := d.rows(block)
	if err != nil {
		return err
	}
	m.Bindings = append(m.Bindings, Binding{Set: set, Binding: binding, Names: []string{name}, Rows: rows})
	return nil
}

// rows returns the struct that block id is an array of, or nil.
func (d *decoder) rows(id uint32) (*Block, error) {
	t := d.types[id]
	if t.op != opTypeStruct || len(t.members) != 1 || d.types[t.members[0]].op != opTypeRuntimeArray {
		return nil, nil
	}
	row := d.types[t.members[0]].elem
	if d.types[row].op != opTypeStruct {
		return nil, nil
	}
	b := &Block{Name: d.names[row]}
	if err := d.members(b, row, "", 0, 0); err != nil {
		return nil, err
	}
	b.Size = int(d.strides[t.members[0]])
	return b, nil
}

// members adds the members of struct type id, which lies at offset, to b. A
// struct cannot contain itself: depth only bounds what a broken module can do.
func (d *decoder) members(b *Block, id uint32, prefix string, offset, depth int) error {
	t := d.types[id]
	if t.op != opTypeStruct || depth > 8 {
		return fmt.Errorf("reflect: %%%d is not a block", id)
	}
	for i, elem := range t.members {
		at := member{id, uint32(i)}
		o, ok := d.offsets[at]
		if !ok {
			return fmt.Errorf("reflect: member %d of %s has no offset", i, d.names[id])
		}
		name := prefix + d.memberNames[at]
		if d.types[elem].op == opTypeStruct {
			if err := d.members(b, elem, name+".", offset+int(o), depth+1); err != nil {
				return err
			}
			continue
		}
		typ, size, err := d.typeOf(elem)
		if err != nil {
			return err
		}
		b.Members = append(b.Members, Member{Name: name, Type: typ, Offset: offset + int(o), Size: size})
		b.Size = max(b.Size, offset+int(o)+size)
	}
	return nil
}

// typeOf returns the name that GLSL has for a type, and its size in bytes. A
// device address (buffer_reference) is a uint64_t.
func (d *decoder) typeOf(id uint32) (string, int, error) {
	t, ok := d.types[id]
	if !ok {
		return "", 0, fmt.Errorf("reflect: %%%d is not a type", id)
	}
	switch t.op {
	case opTypeBool:
		return "bool", 4, nil
	case opTypeInt:
		return intNames[t.width][t.signed&1], int(t.width / 8), nil
	case opTypeFloat:
		name := map[uint32]string{16: "float16_t", 32: "float", 64: "double"}[t.width]
		return name, int(t.width / 8), nil
	case opTypePointer:
		return "uint64_t", 8, nil
	case opTypeVector, opTypeArray:
		if e := d.types[t.elem].op; e != opTypeInt && e != opTypeFloat && e != opTypePointer {
			return "", 0, fmt.Errorf("reflect: %%%d is not made of numbers", id)
		}
		name, size, err := d.typeOf(t.elem)
		if err != nil {
			return "", 0, err
		}
		if t.op == opTypeVector {
			return vectorNames[name] + strconv.Itoa(int(t.count)), size * int(t.count), nil
		}
		n, stride := int(d.constants[t.count]), int(d.strides[id])
		if stride != size {
			return fmt.Sprintf("%s[%d] with stride %d", name, n, stride), n * stride, nil
		}
		return fmt.Sprintf("%s[%d]", name, n), n * size, nil
	}
	return "", 0, fmt.Errorf("reflect: type %%%d (opcode %d) has no counterpart on the host", id, t.op)
}

// vectorNames are GLSL's names of vectors by their component, without the number.
var vectorNames = map[string]string{
	"uint8_t": "u8vec", "int8_t": "i8vec", "uint16_t": "u16vec", "int16_t": "i16vec", "uint": "uvec", "int": "ivec",
	"uint64_t": "u64vec", "int64_t": "i64vec", "float16_t": "f16vec", "float": "vec", "double": "dvec",
}

// intNames are GLSL's names of integers by width, unsigned and signed.
var intNames = map[uint32][2]string{
	8: {"uint8_t", "int8_t"}, 16: {"uint16_t", "int16_t"}, 32: {"uint", "int"}, 64: {"uint64_t", "int64_t"},
}
