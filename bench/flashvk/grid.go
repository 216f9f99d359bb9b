package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
)

// gridHelp is the help of lists.
const gridHelp = `Sizes, types and switches may be lists, such as 512,1024,1365. Each combination is a
problem. A list of sizes may also be 128..2048+128, in steps of 128, or 128..16384x2,
each size twice the one before. --residual=both is --residual=false,true.`

// A gridAxis is a flag that may be a list. It sets the flag of the kernel to one value after the
// other.
type gridAxis struct {
	pflag.Value
	values []string
}

// maxProblems bounds the problems of a grid.
const maxProblems = 10_000

// Set implements pflag.Value.
func (x *gridAxis) Set(text string) error {
	if text == "both" && x.Value.Type() == "bool" {
		text = "false,true"
	}
	var values []string
	words := strings.Split(text, ",")
	for _, word := range words {
		list, err := expand(word)
		if own := x.Value.Set(word); err != nil && (own == nil || strings.HasPrefix(own.Error(), "not a range")) {
			list, err = []string{word}, own // the flag reads ranges itself
		}
		for _, one := range list {
			if err == nil {
				err = x.Value.Set(one)
			}
			if slices.Contains(values, one) {
				return fmt.Errorf("%q occurs twice", one)
			}
			values = append(values, one)
		}
		if err != nil && len(words) > 1 {
			err = fmt.Errorf("%q is %w", word, err)
		}
		if err != nil {
			return err
		}
	}
	x.values = values
	return nil
}

// Names returns the names that the flag takes; see kernels.Value.
func (x *gridAxis) Names() []string {
	if v, ok := x.Value.(interface{ Names() []string }); ok {
		return v.Names()
	}
	return nil
}

// Type implements pflag.Value.
func (x *gridAxis) Type() string {
	switch kind := x.Value.Type(); kind {
	case "TYPE":
		return "TYPES"
	case "bool":
		return kind
	}
	return "LIST"
}

// isRange matches A..B+STEP and A..BxFACTOR.
var isRange = regexp.MustCompile(`^(\d{1,18})\.\.(\d{1,18})([+x])(\d{1,18})$`)

// expand returns the numbers of a range, and any other word as it is.
func expand(word string) (list []string, err error) {
	m := isRange.FindStringSubmatch(word)
	if m == nil && strings.Contains(word, "..") {
		return nil, errors.New("not FIRST..LAST+STEP or FIRST..LASTxFACTOR, of integers")
	}
	if m == nil {
		return []string{word}, nil
	}
	first, _ := strconv.Atoi(m[1])
	last, _ := strconv.Atoi(m[2])
	by, _ := strconv.Atoi(m[4])
	for n, next := first, 0; n <= last; n = next {
		if next = n + by; m[3] == "x" {
			next = int(min(float64(n)*float64(by), 1e18))
		}
		if list = append(list, strconv.Itoa(n)); len(list) > maxProblems {
			return nil, fmt.Errorf("more than %d numbers", maxProblems)
		}
		if next <= n {
			list = nil
			break
		}
	}
	if list == nil {
		return nil, fmt.Errorf("not a range that grows from %d to %d", first, last)
	}
	return list, nil
}

// each returns the results of make for all combinations. The first flag changes slowest.
func each(axes []*gridAxis, make func() ([]bench.Op, error)) ([]bench.Op, error) {
	total := 1
	for _, x := range axes {
		if total *= max(len(x.values), 1); total > maxProblems {
			return nil, fmt.Errorf("the flags make %d problems, more than %d", total, maxProblems)
		}
	}
	var list []bench.Op
	for n := range total {
		for i := len(axes) - 1; i >= 0; i-- {
			if x := axes[i]; len(x.values) > 0 {
				if err := x.Value.Set(x.values[n%len(x.values)]); err != nil {
					return nil, err
				}
				n /= len(x.values)
			}
		}
		ops, err := make()
		if err != nil {
			return nil, err
		}
		list = append(list, ops...)
	}
	return list, nil
}
