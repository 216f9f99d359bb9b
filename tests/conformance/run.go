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
// Entry.Formats.
func All(d *vk.Device, formats bool) iter.Seq[Instance] {
	columns := 16
	if shape, lack := chips.MatrixShape(d.Caps(), dtype.Float16); lack == "" {
		columns = int(shape.N)
	}
	return func(yield func(Instance) bool) {
		for _, e := range Table() {
			for _, format := range e.Formats(formats) {
				for _, path := range e.paths() {
					k, p, err := e.On(format, path, columns)
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
