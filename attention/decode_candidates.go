package attention

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/vk"
)

// ParseDecodeConfig reads what DecodeConfig.String writes.
func ParseDecodeConfig(text string) (c DecodeConfig, err error) {
	text, c.Append = strings.CutSuffix(text, appendWord)
	words := strings.Split(text, ",")
	if c.Impl, err = ParseImpl(words[0]); err != nil || c.Impl == Auto {
		return c, fmt.Errorf("attention: decode: %q does not begin with a path", text)
	}
	fields := []struct {
		name   string
		target *int
	}{{"rows", &c.Rows}, {"subgroups", &c.Subgroups}, {"groups", &c.Groups}}
	if len(words) != 1+len(fields) {
		return c, fmt.Errorf("attention: decode: %q is not PATH,rows=N,subgroups=N,groups=N or that and ,append", text)
	}
	for i, f := range fields {
		name, value, _ := strings.Cut(words[1+i], "=")
		if *f.target, err = strconv.Atoi(value); err != nil || name != f.name {
			return c, fmt.Errorf("attention: decode: %q of %q is not %s=N", words[1+i], text, f.name)
		}
	}
	return c, nil
}

// decodeCandidates returns the configurations of a path that are worth measuring: first the one
// that ChooseDecode takes, then other rows and subgroups. decodeVariants has other numbers of
// workgroups.
func decodeCandidates(caps *vk.Caps, p DecodeProblem, impl Impl) ([]DecodeConfig, error) {
	first, _, err := chooseDecode(caps, p, Options{Impl: impl})
	if err != nil {
		return nil, err
	}
	list := []DecodeConfig{first}
	rows := []int{first.Rows, 1, 2, 4, 8, 16}
	if first.Impl == CoopMat {
		rows = []int{first.Rows, 8, 16, 32}
	}
	for _, r := range rows {
		for _, subgroups := range []int{first.Subgroups, 4, 8, 12, 16, 32} {
			c := first
			c.Rows, c.Subgroups = r, subgroups
			if c.Feasible(caps, p) == nil && !slices.Contains(list, c) {
				list = append(list, c)
			}
		}
	}
	return list, nil
}

// decodeVariants returns c with two to four times the workgroups.
func decodeVariants(caps *vk.Caps, p DecodeProblem, c DecodeConfig) (list []DecodeConfig) {
	for n := 2; n <= 4; n++ {
		more := c
		more.Groups *= n
		if more.Feasible(caps, p) == nil {
			list = append(list, more)
		}
	}
	return list
}
