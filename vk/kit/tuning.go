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

// A Tuning holds configurations that were measured on one device with one driver, of all
// kernels: what `flashvk tune` writes and [LoadTuningFile] reads. Options.Tuning of a kernel
// package puts its rows before what is built in; on any other device they have no effect. A
// Tuning that nobody adds to any more may be shared by goroutines.
//
// A row stands for problems like the one that was measured. Two problems are alike if all that is
// not a size is the same, and each size is within a factor of 4 or beyond a bound from which on it
// makes no difference. Which sizes count is a kernel's affair. Of several rows the nearest that is
// feasible counts.
type Tuning table.Tuning

// An Origin says where a configuration comes from.
type Origin struct {
	// Tuned says that Options.Tuning has it; else it is built in.
	Tuned bool
	// Passed is why the nearest row of Options.Tuning for the path was passed over: the device
	// or the call cannot have it. Nil if none was.
	Passed error
}

// ErrNewerTuning is wrapped by errors about files that a newer version wrote. Nothing should
// replace them.
var ErrNewerTuning = table.ErrNewer

// NewTuning returns a Tuning without rows for a device.
func NewTuning(caps *vk.Caps) *Tuning { return (*Tuning)(table.NewTuning(caps)) }

// LoadTuning reads a Tuning that Write wrote, for a device. Only the rows of kernels whose
// packages the program imports count; the others are kept for Write.
//
// It returns an error, and no Tuning, if the file is of another device or driver, is damaged, or
// is of a newer format (ErrNewerTuning). Rows whose kernels have changed do not count, see Stale.
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

// OpenUser opens a device with all that its user keeps for it: compiled pipelines, in the cache of
// vk.Options.UserCache unless o names another, and the Tuning of UserTuning, nil if there is none.
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

// Len returns the number of rows that count: neither stale, nor of kernels that this program does
// not have. It is 0 for nil.
func (t *Tuning) Len() int { return (*table.Tuning)(t).Len() }

// Stale returns how many rows were measured with kernels that have changed since. They have no
// effect, and stay in the file until the same problem is measured again.
func (t *Tuning) Stale() int { return (*table.Tuning)(t).Stale() }

// Add notes that config is the best configuration of its path for a problem of a pass of a kernel,
// with a device time of ns nanoseconds. It replaces what was known about the three. Problem and
// config are of the types of the kernel's package, as attention.Problem and attention.Config. It
// returns an error about what no row can have.
func (t *Tuning) Add(kernel string, pass Pass, problem, config any, ns float64) error {
	return (*table.Tuning)(t).Add(kernel, pass, problem, config, ns)
}

// A TuningRow is a row of a Tuning in words.
type TuningRow struct {
	Kernel, Pass    string
	Problem, Config string
	NS              float64
	// Err is why the row has no effect for its own problem: the device cannot run it, its kernels
	// have changed since, or this program does not have the kernel. Nil if it has.
	Err error
}

// Rows returns the rows in the order of the file. For a device, unless caps are nil, they have
// the reasons why it cannot run them.
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
