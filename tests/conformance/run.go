package conformance

import (
	"fmt"
	"iter"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// An Instance is the problem of an entry in a format on a path.
type Instance struct {
	Name    string
	Format  dtype.DType
	Kernel  *trial.Kernel
	Problem trial.Problem
}

// All returns the entries' problems for a device, on every path, in the formats of
// Formats.
func All(d *vk.Device, formats bool) iter.Seq[Instance] {
	columns := 16
	if shape, lack := chips.MatrixShape(d.Caps(), dtype.Float16); lack == "" {
		columns = int(shape.N)
	}
	return func(yield func(Instance) bool) {
		for _, e := range Table() {
			for _, format := range Formats(&e, formats) {
				for _, path := range pathsOf(&e) {
					k, p, err := On(&e, format, path, columns)
					if err != nil {
						panic(fmt.Sprintf("conformance: %s: %v", e.Name, err))
					}
					if !yield(Instance{fmt.Sprintf("%s/%v/%s", e.Name, format, path), format, k, p}) {
						return
					}
				}
			}
		}
	}
}

// pathsOf returns the paths of an entry, or one without a name.
func pathsOf(e *Entry) []string {
	if e.Paths == nil {
		return []string{""}
	}
	return e.Paths
}
