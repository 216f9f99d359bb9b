package kernels

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/safetensors"
)

// FileFlags map the names of tensors in files of other programs.
type FileFlags struct {
	renames map[string]string // from the kernel's name of a tensor to the name in the file
	extra   bool              // the file may have tensors that the kernel does not take
}

// Add adds the flags to f.
func (x *FileFlags) Add(f *pflag.FlagSet) {
	f.StringToStringVar(&x.renames, "map", nil, "name of a tensor in the input file, as `NAME=OTHER`: q=blk.0.attn.q; a comma list, or repeated")
	f.Lookup("map").Value = quiet{f.Lookup("map").Value}
	BoolVar(f, &x.extra, "ignore-extra", "ignore tensors of the input file that the kernel does not take; else they are an error")
}

// quiet has no default in help.
type quiet struct{ pflag.Value }

func (quiet) String() string { return "" }

// Given reports whether the file may hold more than the kernel takes.
func (x *FileFlags) Given() bool { return x.extra || len(x.renames) > 0 }

// A Source is a file whose tensors have the kernel's names and order of axes. Offsets, lengths and
// tables of 64 bits become 32 bits; reading a larger value is an error.
type Source struct {
	in    *safetensors.File
	list  []safetensors.Tensor
	files map[string]safetensors.Tensor // what they are in the file
}

// Read returns a file with the kernel's names, and its problem. It checks that the file holds exactly
// the tensors that the passes read, in their shapes and formats, and that counts are in their ranges.
func (x *FileFlags) Read(in *safetensors.File, flags Flags, backward bool) (*Source, bench.Op, error) {
	s, err := x.source(in, flags)
	if err != nil {
		return nil, nil, err
	}
	op, err := flags.read(s)
	if err != nil {
		return nil, nil, err
	}
	return s, op, s.check(op, x, backward)
}

// source returns the file for the flags of a kernel.
func (x *FileFlags) source(in *safetensors.File, flags Flags) (*Source, error) {
	s := &Source{in: in, files: map[string]safetensors.Tensor{}}
	for _, name := range slices.Sorted(maps.Keys(x.renames)) {
		if inFile := x.renames[name]; !s.fileHas(inFile) {
			return nil, fmt.Errorf("--map %s=%s: there is no tensor %s, but %s", name, inFile, shortName(inFile), someNames(in))
		}
	}
	for _, t := range in.Tensors() {
		names := []string{}
		for name, inFile := range x.renames {
			if inFile == t.Name {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			name := t.Name
			if own := flags.alias(name); own != "" && x.renames[own] == "" && !s.fileHas(own) {
				name = own
			}
			if x.renames[name] == "" {
				names = append(names, name)
			}
		}
		for _, name := range names {
			s.files[name] = t
			own := t
			own.Name, own.Shape = name, Permuted(t.Shape, flags.Axes(name, len(t.Shape)))
			if counts(t) {
				own.DType = "I32"
			}
			s.list = append(s.list, own)
		}
	}
	return s, nil
}

func (s *Source) fileHas(name string) bool {
	_, ok := s.in.Tensor(name)
	return ok
}

// counts reports whether a tensor may hold offsets, lengths or a table of 64 bits.
func counts(t safetensors.Tensor) bool { return t.DType == "I64" && len(t.Shape) <= 2 }

// Permuted returns the shape whose axis i is axis axes[i] of shape; shape where axes is nil.
func Permuted(shape, axes []int) []int {
	if axes == nil {
		return shape
	}
	to := make([]int, len(axes))
	for i, a := range axes {
		to[i] = shape[a]
	}
	return to
}

// Tensor returns the tensor of that name.
func (s *Source) Tensor(name string) (safetensors.Tensor, bool) {
	i := slices.IndexFunc(s.list, func(t safetensors.Tensor) bool { return t.Name == name })
	if i < 0 {
		return safetensors.Tensor{}, false
	}
	return s.list[i], true
}

func (s *Source) has(name string) bool {
	_, ok := s.Tensor(name)
	return ok
}

// shape returns a tensor, whose axes have names in messages.
func (s *Source) shape(name string, axes ...string) (safetensors.Tensor, error) {
	t, ok := s.Tensor(name)
	if !ok {
		return t, fmt.Errorf("tensor %q is missing", name)
	}
	if len(t.Shape) != len(axes) {
		return t, fmt.Errorf("tensor %q: shape %v has %d axes, want %d: %s", name, t.Shape, len(t.Shape), len(axes), strings.Join(axes, ", "))
	}
	return t, nil
}

// float returns the format of a tensor of floating-point numbers.
func (s *Source) float(name string) (dtype.DType, error) {
	t, ok := s.Tensor(name)
	if !ok {
		return 0, fmt.Errorf("tensor %q is missing", name)
	}
	for _, format := range dtype.All() {
		if bench.FileDType(format) == t.DType {
			return format, nil
		}
	}
	return 0, fmt.Errorf("tensor %q: dtype %s is not one of F16, BF16, F32", name, t.DType)
}

// into sets the fields of a call that have the names of a tensor's format and axes. The first tensor
// with an axis says its size.
func (s *Source) into(c call.Call, tensor, format string, axes ...string) error {
	t, err := s.shape(tensor, axes...)
	if err != nil {
		return err
	}
	x, err := s.float(tensor)
	if err != nil {
		return err
	}
	if to := call.Field(c, format); to.IsValid() {
		to.Set(reflect.ValueOf(x))
	}
	for i, axis := range axes {
		if to := call.Field(c, axis); to.IsValid() && to.IsZero() {
			to.SetInt(int64(t.Shape[i]))
		}
	}
	return nil
}

// ints reads a tensor of integers, nil if there is none.
func (s *Source) ints(name string, axes ...string) ([]int32, error) {
	if !s.has(name) {
		return nil, nil
	}
	t, err := s.shape(name, axes...)
	if err == nil && t.DType != "I32" {
		err = fmt.Errorf("tensor %q: dtype %s, want I32", name, t.DType)
	}
	if err != nil {
		return nil, err
	}
	raw := make([]byte, t.Bytes())
	if err := s.ReadAt(t, raw, 0); err != nil {
		return nil, err
	}
	list := make([]int32, len(raw)/4)
	for i := range list {
		list[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return list, nil
}

// check returns an error unless the file holds what passes of op read. With --ignore-extra it leaves
// out all else.
func (s *Source) check(op bench.Op, flags *FileFlags, backward bool) error {
	var names []string
	wanted := map[string]call.Tensor{}
	for _, t := range op.Tensors() {
		if t.Role == call.Input || t.Role == call.Update || t.Role == call.Upstream && backward {
			names, wanted[t.Name] = append(names, t.Name), t
		} else if t.Role == call.Upstream && s.has(t.Name) && !flags.extra {
			return fmt.Errorf("tensor %q is for --backward only", t.Name)
		}
	}
	for name, inFile := range flags.renames {
		if !slices.Contains(names, name) {
			return fmt.Errorf("--map %s=%s: %s is not one of the tensors read, %s", name, inFile, name, strings.Join(names, ", "))
		}
	}
	if flags.extra {
		s.list = slices.DeleteFunc(s.list, func(t safetensors.Tensor) bool { return !slices.Contains(names, t.Name) })
	}
	for _, t := range s.list {
		want, ok := wanted[t.Name]
		if !ok {
			return fmt.Errorf("tensor %s is not one of %s", shortName(t.Name), strings.Join(names, ", "))
		}
		if format := bench.FileDType(want.DType); t.DType != format {
			return fmt.Errorf("tensor %q: dtype %s, want %s", t.Name, t.DType, format)
		}
		if !slices.Equal(t.Shape, want.Shape) {
			return fmt.Errorf("tensor %q: shape %v, want %v", t.Name, t.Shape, want.Shape)
		}
		if want.DType != dtype.Int32 || want.Free {
			continue
		}
		list, err := s.ints(t.Name, make([]string, len(t.Shape))...)
		if err != nil {
			return err
		}
		for _, n := range list {
			if n < 0 || int(n) > want.Most {
				return fmt.Errorf("tensor %q: %d is not in 0..%d", t.Name, n, want.Most)
			}
		}
	}
	for _, name := range names {
		if !s.has(name) && wanted[name].Role == call.Upstream {
			return fmt.Errorf("tensor %q is missing: --backward needs it", name)
		} else if !s.has(name) {
			return fmt.Errorf("tensor %q is missing", name)
		}
	}
	return nil
}

// ReadAt reads bytes of a tensor, from a place on. They have the file's order of axes.
func (s *Source) ReadAt(t safetensors.Tensor, raw []byte, at int64) error {
	from := s.files[t.Name]
	if !counts(from) {
		return s.in.ReadAt(from, raw, at)
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

// someNames lists the tensors of a file, or the first few.
func someNames(in *safetensors.File) string {
	const most = 8
	var names []string
	for _, t := range in.Tensors() {
		if len(names) == most {
			names = append(names, "…")
			break
		}
		names = append(names, shortName(t.Name))
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// shortName quotes a name from a file, cut to a reasonable length.
func shortName(name string) string {
	const most = 80
	if len(name) > most {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(name[:most], ""))
	}
	return fmt.Sprintf("%q", name)
}
