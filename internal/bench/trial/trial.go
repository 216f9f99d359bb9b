// Package trial draws random problems of every kernel, over all that the library
// accepts, and checks each on a device against the float64 reference of its package:
// what a fixed table of cases did not think of.
//
//	Kernel   a row of package call: draws problems of one kernel
//	Problem  one of them, a call: JSON that says all of it
//	Runner   checks problems, amid poison, and counts the modules that ran
//	Run      checks many problems on all cores, repeats and shrinks those that fail
//	Fixed    problems of a table, which flashvk selftest always checks
//
// Problem n of a seed is the same in every run and on every device that draws from the
// same Space. Each is computed at least twice, and the bits compared, with NaN in
// outputs, workspaces, scratch memory, shared memory and registers before the call.
package trial

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
)

// A Kernel is one that problems are drawn for, and a Problem one problem of it.
type (
	Kernel  = call.Kernel
	Problem = call.Call
)

// Supports returns nil if a kernel on the device computes the problem on its path, and otherwise the
// reason, which wraps vk.ErrUnsupported.
func Supports(p Problem, caps *vk.Caps) error {
	_, err := p.Choose(caps, p.Pass())
	return err
}

// Encode writes a problem as flashvk selftest --problem takes it: the kernel's name, a
// colon, and the problem as JSON without the fields that are zero, or with them where a problem
// without them is another one: a dtype.Option of float32 is 0, too.
func Encode(k *Kernel, p Problem) string {
	text, err := json.Marshal(p)
	var fields map[string]any
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber() // seeds have more digits than a float64
		err = d.Decode(&fields)
	}
	short, q := []byte(nil), reflect.New(reflect.TypeOf(p).Elem()).Interface()
	if err == nil {
		short, err = json.Marshal(withoutZeros(fields))
	}
	if err != nil {
		panic(fmt.Sprintf("trial: %v: %v", p, err)) // a bug: fields are plain
	}
	if json.Unmarshal(short, q) == nil {
		if again, err := json.Marshal(q); err == nil && bytes.Equal(again, text) {
			text = short
		}
	}
	return k.Name + ":" + string(text)
}

// withoutZeros removes the fields of an object that hold zero values, and returns nil if
// none are left.
func withoutZeros(fields map[string]any) any {
	for name, x := range fields {
		if object, ok := x.(map[string]any); ok {
			x = withoutZeros(object)
		}
		if x == nil || x == false || x == "" || x == json.Number("0") {
			delete(fields, name)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return fields
}

// Decode reads what Encode writes.
func Decode(text string) (*Kernel, Problem, error) {
	name, rest, ok := strings.Cut(text, ":")
	if !ok {
		return nil, nil, fmt.Errorf("trial: problem %q is not a kernel's name, a colon, and JSON", text)
	}
	all := call.All()
	i := slices.IndexFunc(all, func(k Kernel) bool { return k.Name == name })
	if i < 0 {
		return nil, nil, fmt.Errorf("trial: no kernel %q", name)
	}
	p, decoder := all[i].New(), json.NewDecoder(strings.NewReader(rest))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(p); err != nil {
		return nil, nil, fmt.Errorf("trial: problem of %s: %w", name, err)
	}
	return &all[i], p, nil
}

// Kernels are compiled once for the problems of a family. (In families of eight a problem took half a
// second of a core beside an H100, and its reference a tenth of that.) Families take turns, at least
// as many as there are workers, else workers would wait for one compilation while cores are idle.
const family, turns = 64, 64

// softFamily is both for Space.Soft, where a test draws few problems and wants many families.
const softFamily = 4

// Draw returns problem number n of a seed, and its kernel; false if the Space has none of
// that kernel.
func Draw(seed uint64, n int, kernels []Kernel, s call.Space) (*Kernel, Problem, bool) {
	family, turns := family, turns
	if s.Soft {
		family, turns = softFamily, softFamily
	}
	group := uint64(n/(family*turns)*turns + n%turns)
	of := rand.New(rand.NewPCG(seed, 2*group+1))
	total := 0
	for _, k := range kernels {
		total += k.Weight
	}
	x := of.IntN(total)
	for i := range kernels {
		k := &kernels[i]
		if x -= k.Weight; x < 0 {
			p := k.Draw(of, rand.New(rand.NewPCG(seed, 2*uint64(n))), s)
			return k, p, p != nil
		}
	}
	panic("trial: weights do not add up")
}
