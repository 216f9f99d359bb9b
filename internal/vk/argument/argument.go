// Package argument checks the tensors that are handed to kernels.
package argument

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Unsupported returns an error of a kernel that wraps [vk.ErrUnsupported]: the call is valid, but the
// device cannot run it. Its text is made when it is read: tables ask about one configuration after
// the other, in every call, and look at few of the answers.
func Unsupported(kernel, format string, args ...any) error {
	if false {
		_ = fmt.Sprintf(format, args...) // go vet checks the calls
	}
	return &unsupported{kernel, format, args}
}

type unsupported struct {
	kernel, format string
	args           []any
}

func (e *unsupported) Error() string {
	return fmt.Sprintf("%s: %s: %v", e.kernel, fmt.Sprintf(e.format, e.args...), vk.ErrUnsupported)
}

func (e *unsupported) Unwrap() error { return vk.ErrUnsupported }

// FitsWorkgroup returns an error unless the device has workgroups of this many invocations.
func FitsWorkgroup(kernel string, caps *vk.Caps, impl fmt.Stringer, threads int) error {
	if limit := min(caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0]); threads > int(limit) {
		return Unsupported(kernel, "%v: a workgroup of %d invocations is larger than the device's %d", impl, threads, limit)
	}
	return nil
}

// FitsShared returns an error unless a workgroup has this many bytes of shared memory.
func FitsShared(kernel string, caps *vk.Caps, impl fmt.Stringer, bytes int) error {
	if bytes > int(caps.MaxSharedMemoryBytes) {
		return Unsupported(kernel, "%v: %d bytes of shared memory are more than the device's %d", impl, bytes, caps.MaxSharedMemoryBytes)
	}
	return nil
}

// Storage returns an error unless the device has the storage of these formats, and scalar block layout.
func Storage(kernel string, caps *vk.Caps, formats ...dtype.DType) error {
	if !caps.ScalarBlockLayout {
		return Unsupported(kernel, "the device has no scalar block layout")
	}
	if i := slices.IndexFunc(formats, func(t dtype.DType) bool { return t.Size() == 2 }); i >= 0 && !caps.Storage16 {
		return Unsupported(kernel, "%v needs 16-bit storage", formats[i])
	}
	return nil
}

// Pass returns an error of a kernel about a pass that is neither forward nor backward.
func Pass(kernel string, pass kit.Pass) error {
	if !pass.Valid() {
		return fmt.Errorf("%s: %v is neither the forward nor the backward pass", kernel, pass)
	}
	return nil
}

// An Argument is a tensor with what it must be.
type Argument struct {
	name string
	vk.Tensor
	present   bool // the problem has it
	wantType  dtype.DType
	wantShape []int
	strided   bool   // the last axis need not be contiguous
	axes      string // names of the axes for errors; "": none
}

// New returns the argument of that name: a tensor, whether the problem has it, and the format and
// shape that it must have.
func New(name string, t vk.Tensor, present bool, format dtype.DType, shape []int) Argument {
	return Argument{name: name, Tensor: t, present: present, wantType: format, wantShape: shape}
}

// Strided returns a whose last axis may have any stride.
func (a Argument) Strided() Argument {
	a.strided = true
	return a
}

// Axes returns a whose errors of shape name the axes, as in (batch, heads, seq, dim).
func (a Argument) Axes(names string) Argument {
	a.axes = names
	return a
}

// Check checks each argument of a kernel, then that outputs share memory with
// nothing. The errors begin with the kernel's name and name the first argument that
// does not fit.
func Check(kernel string, inputs, outputs []Argument) error {
	if err := check(inputs, outputs); err != nil {
		return fmt.Errorf("%s: %w", kernel, err)
	}
	return nil
}

// Open checks the tensors of a call as Check does, and returns its workspace: the caller's, which
// shares memory with no argument, or for nil memory of the Cmd; nil if the call needs none.
func Open(c *vk.Cmd, kernel string, given *vk.Buffer, bytes int64, inputs, outputs []Argument) (*vk.Buffer, error) {
	err := check(inputs, outputs)
	switch {
	case err != nil || bytes == 0:
		given = nil
	case given == nil:
		given = c.Scratch(kernel, bytes)
		return given, c.Err()
	case given.Bytes() < bytes:
		err = fmt.Errorf("workspace has %d bytes, want %d", given.Bytes(), bytes)
	default:
		sizes := []int{int(bytes / 4), 1}
		w := New("workspace", vk.Tensor{Buffer: given, DType: dtype.Float32, Shape: sizes[:1], Strides: sizes[1:]}, true, dtype.Float32, sizes[:1])
		err = cmp.Or(w.check(), w.apart(inputs), w.apart(outputs))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kernel, err)
	}
	return given, nil
}

func check(inputs, outputs []Argument) error {
	for _, list := range [...][]Argument{inputs, outputs} {
		for i := range list {
			if err := list[i].check(); err != nil {
				return err
			}
		}
	}
	for i := range outputs {
		out := &outputs[i]
		if !out.present {
			continue
		}
		if out.selfOverlaps() {
			return fmt.Errorf("%s has strides %v for shape %v: elements of an output may not share memory", out.name, out.Strides, out.Shape)
		}
		if err := cmp.Or(out.apart(inputs), out.apart(outputs[:i])); err != nil {
			return err
		}
	}
	return nil
}

// apart returns an error if t, an output, overlaps one of a list.
func (t *Argument) apart(list []Argument) error {
	for i := range list {
		if list[i].present && t.overlaps(&list[i]) {
			return fmt.Errorf("%s overlaps %s: outputs need memory of their own", t.name, list[i].name)
		}
	}
	return nil
}

// check returns an error unless t is a valid tensor of its format and shape
// with a contiguous last axis, or is absent as it should be.
func (t *Argument) check() error {
	if !t.present {
		if !t.IsZero() {
			return fmt.Errorf("%s is given, but the problem has none", t.name)
		}
		return nil
	}
	if t.Buffer == nil {
		return fmt.Errorf("%s has no buffer", t.name)
	}
	if t.DType != t.wantType {
		return fmt.Errorf("%s is %v, want %v", t.name, t.DType, t.wantType)
	}
	if !slices.Equal(t.Shape, t.wantShape) || len(t.Strides) != len(t.wantShape) {
		return fmt.Errorf("%s has shape %v and strides %v, want shape %v%s", t.name, t.Shape, t.Strides, t.wantShape, t.advice())
	}
	if last := len(t.wantShape) - 1; t.Strides[last] != 1 && t.Shape[last] != 1 && !t.strided {
		return fmt.Errorf("%s has strides %v: the last axis is not contiguous", t.name, t.Strides)
	}
	if err := t.Validate(); err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	return nil
}

// advice says what the wanted axes are, and how to get them where only the middle two of four are
// exchanged: (batch, seq, heads, dim) is what other libraries have.
func (t *Argument) advice() string {
	if t.axes == "" {
		return ""
	}
	text := ": " + t.axes
	if s, w := t.Shape, t.wantShape; len(s) == 4 && len(w) == 4 && slices.Equal([]int{s[0], s[2], s[1], s[3]}, w) {
		text += "; Tensor.Permute(0, 2, 1, 3) is a view with these axes"
	}
	return text
}

// overlaps reports whether the address ranges of two tensors meet, other than as parts of
// the same rows.
func (t *Argument) overlaps(u *Argument) bool {
	a, aStart, aEnd := t.Memory()
	b, bStart, bEnd := u.Memory()
	return a == b && aStart < bEnd && bStart < aEnd && !t.besides(u, int(bStart-aStart))
}

// besides reports whether two tensors are different parts of the same rows, such as the columns
// of Q and K in a product of both. U begins distance bytes after t. Along some axes, from the
// largest stride down, both have the same steps. Along the others their spans are apart, and fit
// into a step.
func (t *Argument) besides(u *Argument, distance int) bool {
	size := t.DType.Size()
	if u.DType.Size() != size || distance%size != 0 || len(t.Shape) != len(u.Shape) {
		return false
	}
	distance /= size
	var rows []int // axes with the same steps
	inner := func(x *Argument) int {
		span := 1
		for i, n := range x.Shape {
			if !slices.Contains(rows, i) {
				span += (n - 1) * x.Strides[i]
			}
		}
		return span
	}
	for {
		first, second := inner(t), inner(u)
		span := max(first, distance+second) - min(0, distance) // of both
		apart := distance >= first || -distance >= second
		for i := len(rows) - 1; i >= 0; i-- {
			step := t.Strides[rows[i]]
			apart = apart && step >= span
			span += (t.Shape[rows[i]] - 1) * step
		}
		if apart {
			return true
		}
		next := -1
		for i, n := range t.Shape {
			if n > 1 && n == u.Shape[i] && t.Strides[i] == u.Strides[i] && !slices.Contains(rows, i) && (next < 0 || t.Strides[i] > t.Strides[next]) {
				next = i
			}
		}
		if next < 0 {
			return false
		}
		rows = append(rows, next)
	}
}

// selfOverlaps reports whether two elements of t may share memory: axes taken
// from the smallest stride up must each step over all the smaller ones.
func (t *Argument) selfOverlaps() bool {
	var done [4]bool
	span := 1
	for range t.Shape {
		next := -1
		for i, n := range t.Shape {
			if !done[i] && n > 1 && (next < 0 || t.Strides[i] < t.Strides[next]) {
				next = i
			}
		}
		if next < 0 {
			return false
		}
		if t.Strides[next] < span {
			return true
		}
		span += (t.Shape[next] - 1) * t.Strides[next]
		done[next] = true
	}
	return false
}

// A Place is where a tensor of batches, heads and rows lies, in elements: a struct of a push-constant
// block.
type Place struct {
	Offset  uint32 `glsl:"offset"`
	StrideB uint32 `glsl:"stride_b"`
	StrideH uint32 `glsl:"stride_h"`
	StrideS uint32 `glsl:"stride_s"`
}

// PlaceOf returns the Place of a tensor of four axes, the last of which is contiguous.
func PlaceOf(t vk.Tensor) Place {
	return Place{uint32(t.Offset), uint32(t.Strides[0]), uint32(t.Strides[1]), uint32(t.Strides[2])}
}

// Rows is where a matrix lies, in elements: a struct of a push-constant block.
type Rows struct {
	Offset uint32 `glsl:"offset"`
	Stride uint32 `glsl:"stride"`
}

// RowsOf returns the Rows of a tensor of two axes, the last of which is contiguous.
func RowsOf(t vk.Tensor) Rows { return Rows{uint32(t.Offset), uint32(t.Strides[0])} }

// Aligned reports whether every row of the tensors starts at a multiple of n elements from the start of
// its buffer, so that kernels may load n at a time. Zero tensors have no rows.
func Aligned(n int, tensors ...vk.Tensor) bool {
	return !slices.ContainsFunc(tensors, func(t vk.Tensor) bool { return !t.Aligned(n) })
}
