package chain

import (
	"fmt"
	"slices"
	"strings"
)

// Keep says what the forward pass of a perceptron, y = silu(pre) * W2 of pre = x * W1, leaves
// to the backward pass, which else computes it once more.
type Keep uint8

// What there is to choose from. A package has some of them.
const (
	KeepNothing Keep = iota
	KeepPre          // pre
	KeepHidden       // pre and silu(pre)
)

// String returns nothing, pre or hidden.
func (k Keep) String() string {
	switch k {
	case KeepNothing:
		return "nothing"
	case KeepPre:
		return "pre"
	case KeepHidden:
		return "hidden"
	}
	return fmt.Sprintf("Keep(%d)", uint8(k))
}

// Check returns an error, which begins with the name of a kernel, unless k is one of those
// that the kernel has.
func (k Keep) Check(kernel string, of []Keep) error {
	if !slices.Contains(of, k) {
		return fmt.Errorf("%s: keep=%v is not one of %s", kernel, k, KeepNames(of))
	}
	return nil
}

// KeepNames lists names, with commas between them.
func KeepNames(of []Keep) string {
	names := make([]string, len(of))
	for i, k := range of {
		names[i] = k.String()
	}
	return strings.Join(names, ", ")
}

// ParseKeep accepts the names that String returns of those that a kernel has.
func ParseKeep(name string, of []Keep) (Keep, error) {
	for _, k := range of {
		if name == k.String() {
			return k, nil
		}
	}
	return 0, fmt.Errorf("keep %q is not one of %s", name, KeepNames(of))
}
