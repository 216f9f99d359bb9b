// Package enum gives the values of enumerations their names.
package enum

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Names are the names of the values of T, which count from 0.
type Names[T ~uint8 | ~uint32 | ~int] []string

// Of returns the name of v, or the type and the number of a value that has none.
func (n Names[T]) Of(v T) string {
	if int(v) < len(n) {
		return n[v]
	}
	return fmt.Sprintf("%s(%d)", reflect.TypeFor[T]().Name(), v)
}

// Parse returns the value with a name. What is the enumeration in its error, as in "gemm: impl".
func (n Names[T]) Parse(what, name string) (T, error) {
	i := slices.Index(n, name)
	if i < 0 {
		return 0, fmt.Errorf("%s %q is %w", what, name, NotOneOf(n))
	}
	return T(i), nil
}

// NotOneOf is the error of a name that is none of these.
type NotOneOf []string

func (n NotOneOf) Error() string { return "not one of " + strings.Join(n, ", ") }

// All returns the values, in order.
func (n Names[T]) All() []T {
	all := make([]T, len(n))
	for i := range n {
		all[i] = T(i)
	}
	return all
}

// String returns the names with commas between them.
func (n Names[T]) String() string { return strings.Join(n, ", ") }
