package kit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// A Tuning holds configurations of all kernels that were measured on one device with one driver.
// `flashvk tune` writes it, [LoadTuningFile] reads it. Options.Tuning of a kernel package puts its
// rows before the built-in ones; on any other device they have no effect. Goroutines may share a
// Tuning that is no longer changed.
//
// A row stands for problems like the measured one: everything but the sizes is equal, and each size
// is within a factor of 4, or both are so large that more makes no difference. Each kernel decides
// which sizes count. Of several rows the nearest feasible one counts.
type Tuning table.Tuning

// An Origin says where a configuration comes from.
type Origin struct {
	// Tuned says that the configuration is of Options.Tuning; otherwise it is built in.
	Tuned bool
	// Passed is the reason why the nearest row of Options.Tuning for the path did not count: the
	// device or the call cannot run it. Nil if there was no such row.
	Passed error
}

// ErrNewerTuning is wrapped by errors about files that a newer version wrote. Nothing should
// replace them.
var ErrNewerTuning = table.ErrNewer

// NewTuning returns a Tuning without rows for a device.
func NewTuning(caps *vk.Caps) *Tuning { return (*Tuning)(table.NewTuning(caps)) }

// LoadTuning reads a Tuning for a device in the format of Write. Only rows of kernels whose
// packages the program imports count; the others are kept for Write.
//
// It returns an error, and no Tuning, if the file is of another device or driver, is damaged, or
// has a newer format (ErrNewerTuning). Rows of changed kernels do not count, see Stale.
func LoadTuning(r io.Reader, caps *vk.Caps) (*Tuning, error) {
	t, err := table.Load(r, caps)
	return (*Tuning)(t), err
}

// LoadTuningFile is LoadTuning for the file at path. A file that does not
// exist is an error that wraps fs.ErrNotExist.
func LoadTuningFile(path string, caps *vk.Caps) (*Tuning, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("kit: tuning: %w", err)
	}
	defer f.Close()
	return LoadTuning(f, caps)
}

// TuningPath returns the file for a device's Tuning in a folder. Its name has vendor, device
// and driver, in numbers.
func TuningPath(dir string, caps *vk.Caps) string {
	return filepath.Join(dir, fmt.Sprintf("%04x-%04x-%d-%08x.json", caps.VendorID, caps.DeviceID, caps.DriverID, caps.DriverVersion))
}

// UserTuningPath returns the file for a device in the user's cache folder, which `flashvk tune`
// writes and the other commands read. It returns an error if there is no such folder.
func UserTuningPath(caps *vk.Caps) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return TuningPath(filepath.Join(dir, "flashvk", "tuning"), caps), nil
}

// UserTuning returns the Tuning in the file of UserTuningPath. It returns nil if there is no such
// file; Options.Tuning of every kernel takes nil. OpenUser also keeps compiled pipelines, as
// vk.Options.UserCache does.
func UserTuning(caps *vk.Caps) (*Tuning, error) {
	path, err := UserTuningPath(caps)
	if err != nil {
		return nil, nil // no folder, so nothing was tuned
	}
	t, err := LoadTuningFile(path, caps)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// OpenUser opens a device with the user's files for it: the cache of pipelines of
// vk.Options.UserCache, unless o names another, and the Tuning of UserTuning, nil if there is none.
func OpenUser(o vk.Options) (*vk.Device, *Tuning, error) {
	o.UserCache = true
	d, err := vk.Open(o)
	if err != nil {
		return nil, nil, err
	}
	t, err := UserTuning(d.Caps())
	if err != nil {
		return nil, nil, errors.Join(err, d.Close())
	}
	return d, t, nil
}

// Clone returns a copy of t. Adding to one does not change the other.
func (t *Tuning) Clone() *Tuning { return (*Tuning)((*table.Tuning)(t).Clone()) }

// Len returns the number of rows that count: those that are not stale and whose kernel the program
// has. It is 0 for nil.
func (t *Tuning) Len() int { return (*table.Tuning)(t).Len() }

// Stale returns the number of rows whose kernels have changed since they were measured. They have
// no effect, and stay in the file until the same problem is measured again.
func (t *Tuning) Stale() int { return (*table.Tuning)(t).Stale() }

// Add records that config is the best configuration of its path for a problem of a pass of a
// kernel, with a device time of ns nanoseconds. It replaces an earlier record of the same three.
// Problem and config have the types of the kernel's package, such as attention.Problem and
// attention.Config. It is an error if no row can hold them.
func (t *Tuning) Add(kernel string, pass Pass, problem, config any, ns float64) error {
	return (*table.Tuning)(t).Add(kernel, pass, problem, config, ns)
}

// A TuningRow is a row of a Tuning in words.
type TuningRow struct {
	Kernel, Pass    string
	Problem, Config string
	NS              float64
	// Err is the reason why the row has no effect for its own problem: the device cannot run it,
	// its kernels have changed, or this program does not have the kernel. Nil if it has an effect.
	Err error
}

// Rows returns the rows in the order of the file. Unless caps is nil, rows that the device cannot
// run have the reason in Err.
func (t *Tuning) Rows(caps *vk.Caps) []TuningRow {
	var list []TuningRow
	for _, row := range (*table.Tuning)(t).Rows(caps) {
		list = append(list, TuningRow(row))
	}
	return list
}

// Write writes t as JSON, for LoadTuning.
func (t *Tuning) Write(w io.Writer) error { return (*table.Tuning)(t).Write(w) }

// WriteFile writes t to the file at path, and makes its folder. A reader of the file sees the old
// content or the new one, whole.
func (t *Tuning) WriteFile(path string) error { return (*table.Tuning)(t).WriteFile(path) }
