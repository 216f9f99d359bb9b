package kernels

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
)

// A Value is a flag whose text Parse reads. Its messages name the rule; the messages of pflag's own
// types name strconv.
type Value[T any] struct {
	Target *T
	Parse  func(string) (T, error)
	Kind   string
	Text   string // the default that help prints, "" where it depends on the device: usage texts have it
}

func (v Value[T]) Set(text string) error {
	x, err := v.Parse(text)
	if err == nil {
		*v.Target = x
	}
	return err
}

func (v Value[T]) String() string { return v.Text }

// Type implements pflag.Value: the word for the value in help.
func (v Value[T]) Type() string { return v.Kind }

// Names returns the names that v takes, none if it takes others.
func (v Value[T]) Names() []string {
	var names enum.NotOneOf
	if _, err := v.Parse("?"); !errors.As(err, &names) {
		return nil
	}
	return names
}

// ListOf returns a parser of comma lists in which nothing occurs twice.
func ListOf[T comparable](parse func(string) (T, error)) func(string) ([]T, error) {
	return func(text string) ([]T, error) {
		var list []T
		for word := range strings.SplitSeq(text, ",") {
			x, err := parse(word)
			if err != nil {
				return nil, fmt.Errorf("%q is %w", word, err)
			}
			if slices.Contains(list, x) {
				return nil, fmt.Errorf("%q occurs twice", word)
			}
			list = append(list, x)
		}
		return list, nil
	}
}

// OneOf returns a parser of names.
func OneOf(names []string) func(string) (string, error) {
	return func(text string) (string, error) {
		if !slices.Contains(names, text) {
			return "", enum.NotOneOf(names)
		}
		return text, nil
	}
}

// ParseInt reads an integer.
func ParseInt(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if errors.Is(err, strconv.ErrRange) {
		return 0, errors.New("too large")
	}
	if err != nil {
		return 0, errors.New("not an integer")
	}
	return n, nil
}

// ParseFloat reads a number.
func ParseFloat(text string) (float64, error) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, errors.New("not a number")
	}
	return x, nil
}

func parseBool(text string) (bool, error) {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, errors.New("not true or false")
	}
	return b, nil
}

// ParseDType reads the name of a floating-point format.
func ParseDType(text string) (dtype.DType, error) {
	t, err := dtype.Parse(text)
	if err != nil {
		return 0, enum.NotOneOf{"float16", "bfloat16", "float32"}
	}
	return t, nil
}

// IntVar adds a flag whose value is an integer.
func IntVar(f *pflag.FlagSet, p *int, name, usage string) {
	f.Var(Value[int]{p, ParseInt, intKind, ""}, name, usage)
}

// intKind is the word for an integer in help.
const intKind = "N"

// BoolVar adds a flag that needs no value.
func BoolVar(f *pflag.FlagSet, p *bool, name, usage string) {
	f.Var(Value[bool]{p, parseBool, "bool", ""}, name, usage)
	f.Lookup(name).NoOptDefVal = "true"
}

// DTypeVar adds a flag whose value is the name of a floating-point format.
func DTypeVar(f *pflag.FlagSet, p *dtype.DType, name, usage string) {
	f.Var(Value[dtype.DType]{p, ParseDType, dtypeKind, ""}, name, usage)
}

// dtypeKind is the word for a format in help.
const dtypeKind = "TYPE"

// pointer returns a parser of what a field points at.
func pointer[T any](parse func(string) (T, error)) func(string) (*T, error) {
	return func(text string) (*T, error) {
		x, err := parse(text)
		return &x, err
	}
}

// parseOption reads the name of a format as an option.
func parseOption(text string) (dtype.Option, error) {
	t, err := ParseDType(text)
	return dtype.Some(t), err
}

// named returns the value of a flag that takes the names of some constants.
func named[T fmt.Stringer](kind string, of ...T) value {
	return parsed(func(text string) (x T, err error) {
		names := make(enum.NotOneOf, len(of))
		for i, x := range of {
			if names[i] = x.String(); names[i] == text {
				return x, nil
			}
		}
		return x, names
	}, kind)
}
