package kernels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/safetensors"
)

// FileFlags map the names of tensors in files of other programs.
type FileFlags struct {
	renames []rename
	extra   bool // the file may have tensors that the kernel does not take
}

// A rename gives a tensor of a file the name that the kernel has for it.
type rename struct{ name, inFile string }

// Add adds the flags to f.
func (x *FileFlags) Add(f *pflag.FlagSet) {
	f.Var(mapFlag{&x.renames}, "map", "name of a tensor in the input file: q=blk.0.attn.q; a comma list, or repeated")
	BoolVar(f, &x.extra, "ignore-extra", "ignore tensors of the input file that the kernel does not take; else they are an error")
}

// Given reports whether the file may hold more than the kernel takes.
func (x *FileFlags) Given() bool { return x.extra || len(x.renames) > 0 }

// mapFlag appends what each --map says.
type mapFlag struct{ list *[]rename }

// Set implements pflag.Value. A comma without NAME= after it is a part of a name.
func (m mapFlag) Set(text string) error {
	var list []rename
	for word := range strings.SplitSeq(text, ",") {
		name, inFile, ok := strings.Cut(word, "=")
		switch {
		case !ok && len(list) > 0:
			list[len(list)-1].inFile += "," + word
			continue
		case !ok || name == "" || inFile == "":
			return fmt.Errorf("%q is not NAME=NAME IN THE FILE", word)
		}
		if slices.ContainsFunc(slices.Concat(*m.list, list), func(r rename) bool { return r.name == name }) {
			return fmt.Errorf("%q occurs twice", name)
		}
		list = append(list, rename{name, inFile})
	}
	*m.list = append(*m.list, list...)
	return nil
}

// String implements pflag.Value.
func (m mapFlag) String() string { return "" }

// Type implements pflag.Value.
func (m mapFlag) Type() string { return "NAME=OTHER" }

// A namer is Flags that know all names of tensors that a file may hold, and other programs' names
// of some.
type namer interface {
	Inputs() []string
	Aliases() map[string]string // by the kernel's names
}

// A Source is a file whose tensors have the kernel's names. Offsets, lengths and tables of 64 bits
// become 32 bits; reading a larger value is an error.
type Source struct {
	flags *FileFlags
	in    File
	list  []safetensors.Tensor
	files map[string]safetensors.Tensor // what they are in the file
}

// Source returns the file for the flags of a kernel.
func (x *FileFlags) Source(in File, flags Flags) (*Source, error) {
	s := &Source{flags: x, in: in, files: map[string]safetensors.Tensor{}}
	renames := slices.Clone(x.renames)
	for _, r := range renames {
		if _, ok := in.Tensor(r.inFile); !ok {
			return nil, fmt.Errorf("--map %s=%s: there is no tensor %s, but %s", r.name, r.inFile, shortName(r.inFile), someNames(in))
		}
	}
	known, _ := flags.(namer)
	if known != nil {
		for name, alias := range known.Aliases() {
			_, named := in.Tensor(name)
			_, there := in.Tensor(alias)
			if there && !named && !slices.ContainsFunc(renames, func(r rename) bool { return r.name == name }) {
				renames = append(renames, rename{name, alias})
			}
		}
	}
	for _, t := range in.Tensors() {
		renamed := false
		for _, r := range renames {
			if r.inFile == t.Name {
				s.add(r.name, t)
				renamed = true
			}
		}
		if !renamed && !slices.ContainsFunc(renames, func(r rename) bool { return r.name == t.Name }) {
			s.add(t.Name, t)
		}
	}
	if x.extra && known != nil {
		s.only(known.Inputs())
	}
	return s, nil
}

// counts reports whether a tensor may hold offsets, lengths or a table of 64 bits.
func counts(t safetensors.Tensor) bool { return t.DType == "I64" && len(t.Shape) <= 2 }

func (s *Source) add(name string, t safetensors.Tensor) {
	s.files[name] = t
	t.Name = name
	if counts(t) {
		t.DType = "I32"
	}
	s.list = append(s.list, t)
}

// only leaves out the tensors of other names.
func (s *Source) only(names []string) {
	s.list = slices.DeleteFunc(s.list, func(t safetensors.Tensor) bool { return !slices.Contains(names, t.Name) })
}

// For leaves out the tensors that the passes of op do not read, if the flags allow such. It is an
// error if a flag names such a tensor.
func (s *Source) For(op bench.Op, backward bool) error {
	var names []string
	for _, t := range op.Tensors() {
		if t.Role == call.Input || t.Role == call.Update || backward && t.Role == call.Upstream {
			names = append(names, t.Name)
		}
	}
	for _, r := range s.flags.renames {
		if !slices.Contains(names, r.name) {
			return fmt.Errorf("--map %s=%s: %s is not one of the tensors read, %s", r.name, r.inFile, r.name, strings.Join(names, ", "))
		}
	}
	if s.flags.extra {
		s.only(names)
	}
	return nil
}

// Tensors implements File.
func (s *Source) Tensors() []safetensors.Tensor { return slices.Clone(s.list) }

// Tensor implements File.
func (s *Source) Tensor(name string) (safetensors.Tensor, bool) { return Header(s.list).Tensor(name) }

// ReadAt implements File.
func (s *Source) ReadAt(t safetensors.Tensor, raw []byte, at int64) error {
	from, ok := s.files[t.Name]
	if !ok || !counts(from) {
		return s.in.ReadAt(t, raw, at)
	}
	if at%4 != 0 || len(raw)%4 != 0 {
		return errors.New("kernels: a part of an integer")
	}
	wide := make([]byte, 2*len(raw))
	if err := s.in.ReadAt(from, wide, 2*at); err != nil {
		return err
	}
	for i := range len(raw) / 4 {
		n := int64(binary.LittleEndian.Uint64(wide[8*i:]))
		if n < math.MinInt32 || n > math.MaxInt32 {
			return fmt.Errorf("tensor %q: %d does not fit 32 bits", t.Name, n)
		}
		binary.LittleEndian.PutUint32(raw[4*i:], uint32(int32(n)))
	}
	return nil
}

// someNames lists what a file has, or the first few.
func someNames(in File) string {
	const most = 8
	var names []string
	for _, t := range in.Tensors() {
		if len(names) == most {
			names = append(names, "…")
			break
		}
		names = append(names, shortName(t.Name))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
