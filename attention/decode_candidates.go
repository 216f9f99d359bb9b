package attention

import (
	"slices"

	"github.com/flashvk/flashvk/vk"
)

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
