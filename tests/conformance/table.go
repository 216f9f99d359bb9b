package conformance

import (
	"fmt"
	"iter"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// An Entry is a problem of a kernel and a pass. Its Problem is one of flashvk selftest --problem.
type Entry = call.Fixed

// Table returns the entries: at least one for each function of the public packages that records a call.
func Table() (list []Entry) {
	for _, k := range call.All() {
		for _, x := range k.Cases {
			x.Problem = fmt.Sprintf(`%s:{%s,"Kind":"normal","Layout":"a","Seed":1}`, k.Name, x.Problem)
			list = append(list, x)
		}
	}
	return list
}

// Formats returns the formats of an entry: all, or those with kernels of their own.
func Formats(e *Entry, all bool) []dtype.DType {
	switch {
	case e.Halves && all:
		return []dtype.DType{dtype.Float16, dtype.BFloat16}
	case all:
		return []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32}
	case e.Own:
		return []dtype.DType{dtype.Float16, dtype.Float32}
	}
	return []dtype.DType{dtype.Float16}
}

// On returns the problem in a format on a path, for a device whose matrices have that many
// columns.
func On(e *Entry, t dtype.DType, path string, columns int) (*trial.Kernel, trial.Problem, error) {
	// Two workgroups divide the keys of a row. Each path has its own configuration for that.
	split := map[string]string{
		attention.CoopMat2.String(): fmt.Sprintf(`{"Impl":"coopmat2","Subgroups":2,"RowTiles":1,"BlockN":%d,"Splits":2}`, 2*columns),
		attention.CoopMat.String():  fmt.Sprintf(`{"Impl":"coopmat","Subgroups":2,"RowTiles":1,"BlockN":%d,"Splits":2}`, 2*columns),
		attention.Scalar.String():   `{"Impl":"scalar","Threads":64,"ThreadsX":8,"BlockM":16,"BlockN":8,"Depth":16,"ValueRows":4,"Splits":2}`,
	}[path]
	if split == "" {
		split = "null"
	}
	half := t // a format of 16 bits beside t
	if half == dtype.Float32 {
		half = dtype.Float16
	}
	text := strings.NewReplacer(
		"$half", fmt.Sprint(int(half)),
		"$dtype", fmt.Sprint(int(t)), "$impl", path, "$split", split, "$side", fmt.Sprint(columns), "$2side", fmt.Sprint(2*columns), "$4side", fmt.Sprint(4*columns),
	).Replace(e.Problem)
	return trial.Decode(text)
}

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
				for _, path := range e.Paths {
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
