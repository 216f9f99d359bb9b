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
//
//	Add(kernel, pass, problem, config, ns)   a measurement, which replaces one of the same problem and path
//	Rows(caps)                               the rows in words, see [TuningRow]
//	Len(), Stale()                           how many rows count; how many are of kernels that have changed since
//	Clone()                                  a copy
//	Write(w), WriteFile(path)                as JSON, for [LoadTuning]
type Tuning = table.Tuning

// A TuningRow is a row of a Tuning in words, with the reason why it has no effect, if it has none.
type TuningRow = table.Words

// An Origin says where a configuration comes from: whether it is Tuned, of Options.Tuning, and why the
// nearest row of it for the path was Passed over, if it was.
type Origin = table.Origin

// ErrNewerTuning is wrapped by errors about files that a newer version wrote. Nothing should
// replace them.
var ErrNewerTuning = table.ErrNewer

// NewTuning returns a Tuning without rows for a device.
func NewTuning(caps *vk.Caps) *Tuning { return table.NewTuning(caps) }

// LoadTuning reads a Tuning for a device in the format of Write. Only rows of kernels whose
// packages the program imports count; the others are kept for Write.
//
// It returns an error, and no Tuning, if the file is of another device or driver, is damaged, or
// has a newer format (ErrNewerTuning). Rows of changed kernels do not count, see Stale.
func LoadTuning(r io.Reader, caps *vk.Caps) (*Tuning, error) { return table.Load(r, caps) }

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
