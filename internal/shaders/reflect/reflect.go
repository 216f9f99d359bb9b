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
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/flashvk/flashvk/internal/spirv"
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
	// where a shader reads one buffer as several types. Names are in the module's
	// order: by first use, not by declaration.
	Names []string
	// Rows is the struct that the binding is an array of and nothing else, as in
	// `buffer Table { Row rows[]; }`; nil for anything else.
	Rows *Block
}

// Parse reads a module.
func Parse(code []byte) (*Module, error) {
	parsed, err := spirv.Parse(code)
	if err != nil {
		return nil, fmt.Errorf("reflect: %w", err)
	}
	r := &reader{Module: parsed, out: &Module{}}
	for _, in := range parsed.Instructions {
		switch in.Op {
		case spirv.OpFunction:
			slices.SortFunc(r.out.Specs, func(a, b Spec) int { return cmp.Compare(a.ID, b.ID) })
			slices.SortFunc(r.out.Bindings, func(a, b Binding) int {
				return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Binding, b.Binding))
			})
			return r.out, nil
		case spirv.OpSpecConstantTrue, spirv.OpSpecConstantFalse, spirv.OpSpecConstant:
			err = r.spec(in.Args[1])
		case spirv.OpVariable:
			err = r.variable(in.Args[1])
		}
		if err != nil {
			return nil, fmt.Errorf("reflect: %w", err)
		}
	}
	return nil, errors.New("reflect: the module ends before its first function")
}

// A reader makes a Module of what a module declares.
type reader struct {
	*spirv.Module
	out *Module
}

// spec adds a specialization constant. glslang declares a second, unnamed
// constant for local_size_x_id with the SpecId of the one that the shader names:
// the name wins, whichever comes first.
func (r *reader) spec(of uint32) error {
	c := r.At(of)
	id, ok := c.Decorations[spirv.SpecID]
	if !ok {
		return nil
	}
	typ, _, err := r.typeOf(c.Type)
	if err != nil {
		return err
	}
	s := Spec{ID: id, Name: c.Name, Type: typ}
	if c.Op == spirv.OpSpecConstantTrue {
		s.Default = 1
	}
	for i, word := range c.Args {
		s.Default |= uint64(word) << (32 * i)
	}
	i := slices.IndexFunc(r.out.Specs, func(s Spec) bool { return s.ID == id })
	switch {
	case i < 0:
		r.out.Specs = append(r.out.Specs, s)
	case r.out.Specs[i].Name == "":
		r.out.Specs[i] = s
	case s.Name != "" && s.Name != r.out.Specs[i].Name:
		return fmt.Errorf("constant_id %d is both %s and %s", id, r.out.Specs[i].Name, s.Name)
	}
	return nil
}

func (r *reader) variable(id uint32) error {
	v := r.At(id)
	pointer := r.At(v.Type)
	if pointer.Op != spirv.OpTypePointer {
		return fmt.Errorf("variable %%%d is not of a pointer type", id)
	}
	block := pointer.Args[1]
	if v.Args[0] == spirv.ClassPushConstant {
		r.out.PushConstants = &Block{Name: r.At(block).Name}
		return r.members(r.out.PushConstants, block, "", 0, 0)
	}
	binding, ok := v.Decorations[spirv.BindingPoint]
	if !ok {
		return nil
	}
	name := r.At(block).Name
	if r.At(block).Op != spirv.OpTypeStruct {
		name = v.Name // an image or a sampler has no block
	}
	set := v.Decorations[spirv.DescriptorSet]
	for i := range r.out.Bindings {
		if b := &r.out.Bindings[i]; b.Set == set && b.Binding == binding {
			b.Names = append(b.Names, name)
			return nil
		}
	}
	rows, err := r.rows(block)
	r.out.Bindings = append(r.out.Bindings, Binding{Set: set, Binding: binding, Names: []string{name}, Rows: rows})
	return err
}

// rows returns the struct that block id is an array of, or nil.
func (r *reader) rows(id uint32) (*Block, error) {
	block := r.At(id)
	if block.Op != spirv.OpTypeStruct || len(block.Args) != 1 {
		return nil, nil
	}
	array := r.At(block.Args[0])
	if array.Op != spirv.OpTypeRuntimeArray || r.At(array.Args[0]).Op != spirv.OpTypeStruct {
		return nil, nil
	}
	b := &Block{Name: r.At(array.Args[0]).Name}
	if err := r.members(b, array.Args[0], "", 0, 0); err != nil {
		return nil, err
	}
	b.Size = int(array.Decorations[spirv.ArrayStride])
	return b, nil
}

// members adds the members of struct type id, which lies at offset, to b. A
// struct cannot contain itself: depth only bounds what a broken module can do.
func (r *reader) members(b *Block, id uint32, prefix string, offset, depth int) error {
	t := r.At(id)
	if t.Op != spirv.OpTypeStruct || depth > 8 {
		return fmt.Errorf("%%%d is not a block", id)
	}
	for i, elem := range t.Args {
		o, ok := t.MemberDecorations[[2]uint32{uint32(i), spirv.Offset}]
		if !ok {
			return fmt.Errorf("member %d of %s has no offset", i, t.Name)
		}
		name, at := prefix+t.MemberNames[uint32(i)], offset+int(o)
		if r.At(elem).Op == spirv.OpTypeStruct {
			if err := r.members(b, elem, name+".", at, depth+1); err != nil {
				return err
			}
			continue
		}
		typ, size, err := r.typeOf(elem)
		if err != nil {
			return err
		}
		b.Members = append(b.Members, Member{Name: name, Type: typ, Offset: at, Size: size})
		b.Size = max(b.Size, at+size)
	}
	return nil
}

// typeOf returns the name that GLSL has for a type, and its size in bytes. A
// device address (buffer_reference) is a uint64_t.
func (r *reader) typeOf(id uint32) (string, int, error) {
	t := r.At(id)
	switch t.Op {
	case spirv.OpTypeBool:
		return "bool", 4, nil
	case spirv.OpTypeInt:
		return intNames[t.Args[0]][t.Args[1]&1], int(t.Args[0] / 8), nil
	case spirv.OpTypeFloat:
		name := map[uint32]string{16: "float16_t", 32: "float", 64: "double"}[t.Args[0]]
		return name, int(t.Args[0] / 8), nil
	case spirv.OpTypePointer:
		return "uint64_t", 8, nil
	case spirv.OpTypeVector, spirv.OpTypeArray:
		switch r.At(t.Args[0]).Op {
		case spirv.OpTypeInt, spirv.OpTypeFloat, spirv.OpTypePointer:
		default:
			return "", 0, fmt.Errorf("%%%d is not made of numbers", id)
		}
		name, size, err := r.typeOf(t.Args[0])
		if err != nil {
			return "", 0, err
		}
		if t.Op == spirv.OpTypeVector {
			return vectorNames[name] + strconv.Itoa(int(t.Args[1])), size * int(t.Args[1]), nil
		}
		n, stride := 0, int(t.Decorations[spirv.ArrayStride])
		if c := r.At(t.Args[1]); c.Op == spirv.OpConstant {
			n = int(c.Args[0])
		}
		if name = fmt.Sprintf("%s[%d]", name, n); stride != size {
			name = fmt.Sprintf("%s with stride %d", name, stride)
		}
		return name, n * stride, nil
	}
	return "", 0, fmt.Errorf("type %%%d (opcode %d) has no counterpart on the host", id, t.Op)
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
