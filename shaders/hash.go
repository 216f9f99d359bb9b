package shaders

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Hash returns a short hash of the SPIR-V of kernels: of their modules for an element type, and
// of those that have one type only. What was measured with kernels is of those of the same hash.
func Hash(typ string, kernels ...string) string {
	name := typ + " " + strings.Join(kernels, " ")
	if known, ok := hashes.Load(name); ok {
		return known.(string)
	}
	h := sha256.New()
	for _, v := range variants {
		if !slices.Contains(kernels, v.Kernel) || v.Type != "" && v.Type != typ {
			continue
		}
		if m, err := Get(v.Kernel, v.Type); err == nil {
			fmt.Fprintf(h, "%s %d\n", m.Name, len(m.SPIRV))
			h.Write(m.SPIRV)
		}
	}
	hash := fmt.Sprintf("%x", h.Sum(nil)[:8])
	hashes.Store(name, hash)
	return hash
}

// hashes has what Hash returned.
var hashes sync.Map
