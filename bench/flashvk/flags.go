package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/problem"
	"github.com/flashvk/flashvk/dtype"
)

// A value is a flag whose text is read by parse. Unlike pflag's own types its
// messages speak of the rule, not of strconv.
type value[T any] struct {
	target *T
	parse  func(string) (T, error)
	kind   string
}

// Set implements pflag.Value.
func (v value[T]) Set(text string) error {
	x, err := v.parse(text)
	if err == nil {
		*v.target = x
	}
	return err
}

// String implements pflag.Value. Help would print it as the default; the
// defaults depend on the device, so the usage texts say them.
func (v value[T]) String() string { return "" }

// Type implements pflag.Value: the word for the value in help.
func (v value[T]) Type() string { return v.kind }

func parseInt(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if errors.Is(err, strconv.ErrRange) {
		return 0, errors.New("too large")
	}
	if err != nil {
		return 0, errors.New("not an integer")
	}
	return n, nil
}

func parseFloat(text string) (float64, error) {
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

func parseDType(text string) (dtype.DType, error) {
	t, err := dtype.Parse(text)
	if err != nil {
		return 0, errors.New("not one of float16, bfloat16, float32")
	}
	return t, nil
}

func parseAlign(text string) (problem.Align, error) {
	a, err := problem.ParseAlign(text)
	if err != nil {
		return 0, errors.New("not one of bottom-right, top-left")
	}
	return a, nil
}

func parseImpl(text string) (attention.Impl, error) {
	i, err := attention.ParseImpl(text)
	if err != nil {
		return 0, errors.New("not one of " + implNames())
	}
	return i, nil
}

// implNames lists what --impl accepts.
func implNames() string {
	names := []string{attention.Auto.String()}
	for _, i := range attention.Impls() {
		names = append(names, i.String())
	}
	return strings.Join(names, ", ")
}

// parseImpls reads a comma list in which nothing occurs twice.
func parseImpls(text string) ([]attention.Impl, error) {
	var list []attention.Impl
	seen := make(map[attention.Impl]bool)
	for _, name := range strings.Split(text, ",") {
		i, err := parseImpl(name)
		if err != nil {
			return nil, fmt.Errorf("%q is %w", name, err)
		}
		if seen[i] {
			return nil, fmt.Errorf("%q occurs twice", name)
		}
		seen[i] = true
		list = append(list, i)
	}
	return list, nil
}

func intVar(f *pflag.FlagSet, p *int, name, usage string) {
	f.Var(value[int]{p, parseInt, "N"}, name, usage)
}
