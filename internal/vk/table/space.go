package table

import (
	"cmp"
	"fmt"
	"math/bits"
	"reflect"
	"slices"

	"github.com/flashvk/flashvk/vk"
)

// A Config is a configuration of some table. Two are compared with ==.
type Config = fmt.Stringer

// A Space is what a tuner searches for a problem: the configurations of a table that are worth
// measuring. All are feasible.
type Space struct {
	// Path returns the path of a configuration.
	Path func(c Config) string
	// Candidates returns configurations of a path. The first is the table's choice; the likeliest
	// follow, so that a search that runs out of time has seen them. The error wraps
	// vk.ErrUnsupported if the device does not have the path.
	Candidates func(caps *vk.Caps, path string) ([]Config, error)
	// Variants returns configurations that differ from c in a choice that Candidates does not
	// vary.
	Variants func(caps *vk.Caps, c Config) []Config
	// Keep adds c to a tuning, with the device time of a call.
	Keep func(t *Tuning, c Config, ns float64) error
}

// SpaceOf returns the Space of a pass of a kernel, whose package must be linked, for a problem. It
// panics if there is none with such problems.
func SpaceOf(kernel string, pass fmt.Stringer, problem any) *Space {
	return tables[[2]string{kernel, pass.String()}].space(problem)
}

// space implements tableReader.
func (t *Table[P, C, S]) space(problem any) *Space {
	p := problem.(P)
	return &Space{
		Path: func(c Config) string {
			of := any(c).(C)
			return t.Path(&of)
		},
		Candidates: func(caps *vk.Caps, path string) ([]Config, error) {
			start, _, err := t.Choose(caps, &p, Query[C]{Path: path})
			if err != nil {
				return nil, err
			}
			return t.feasible(caps, &p, start, t.Candidates(caps, p, start)), nil
		},
		Variants: func(caps *vk.Caps, c Config) []Config {
			of := any(c).(C)
			return t.feasible(caps, &p, of, t.Variants(caps, p, of))[1:]
		},
		Keep: func(to *Tuning, c Config, ns float64) error { return t.add(to, p, c, ns) },
	}
}

// feasible returns first, then the feasible configurations of a list without repeats.
func (t *Table[P, C, S]) feasible(caps *vk.Caps, p *P, first C, list []C) []Config {
	seen := map[C]bool{first: true}
	all := []Config{any(first).(Config)}
	for _, c := range list {
		if !seen[c] && t.Feasible(&c, caps, p) == nil {
			all = append(all, any(c).(Config))
		}
		seen[c] = true
	}
	return all
}

// Grid returns a configuration with all combinations of values that the tags of its fields have
// for its path, as in
//
//	Subgroups int  `tune:"1 2 4 8"`
//	Prefetch  bool `tune:"0 1"`
func Grid[C any](c C, path string) []C {
	list := []C{c}
	for i, w := range choicesOf(reflect.TypeFor[C]()) {
		if len(w.tune) == 0 || !w.isOn(path) {
			continue
		}
		var more []C
		for _, x := range list {
			more = append(more, withValues(x, i, w.tune)...)
		}
		list = more
	}
	return list
}

// Changed returns c with each of the values that the tags `vary:"0 2 4"` of its fields have for its
// path, one field at a time.
func Changed[C any](c C, path string) (list []C) {
	for i, w := range choicesOf(reflect.TypeFor[C]()) {
		if w.isOn(path) {
			list = append(list, withValues(c, i, w.vary)...)
		}
	}
	return list
}

// withValues returns c with each of the values of a field.
func withValues[C any](c C, field int, values []int64) (list []C) {
	for _, n := range values {
		switch f := reflect.ValueOf(&c).Elem().Field(field); f.Kind() {
		case reflect.Bool:
			f.SetBool(n != 0)
		default:
			f.SetInt(n)
		}
		list = append(list, c)
	}
	return list
}

// ByDistance sorts configurations by their distance from one: the doublings of numbers, and one for
// each other change.
func ByDistance[C any](list []C, from C) []C {
	slices.SortStableFunc(list, func(a, b C) int { return cmp.Compare(Distance(a, from), Distance(b, from)) })
	return list
}

// Distance returns the distance of two configurations.
func Distance[C any](a, b C) int { return fieldDistance(reflect.ValueOf(a), reflect.ValueOf(b)) }

func fieldDistance(x, y reflect.Value) int {
	d := 0
	for i := range x.NumField() {
		switch f, g := x.Field(i), y.Field(i); f.Kind() {
		case reflect.Int:
			n := bits.Len(uint(f.Int())) - bits.Len(uint(g.Int()))
			d += max(n, -n)
			if n == 0 && f.Int() != g.Int() {
				d++
			}
		case reflect.Bool:
			if f.Bool() != g.Bool() {
				d++
			}
		case reflect.Struct:
			d += fieldDistance(f, g)
		}
	}
	return d
}
