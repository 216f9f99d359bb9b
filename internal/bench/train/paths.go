package train

import (
	"fmt"
	"os"
	"path/filepath"
)

// checkPaths returns an error if a file would be written over one that is read, or written too.
// What continues a training may replace the file that it began with.
func (o *Options) checkPaths() error {
	type file struct{ name, path string }
	curve := func(ending string) file {
		if o.Curve == "" {
			return file{}
		}
		return file{"curve", o.Curve + ending}
	}
	written := []file{{"save", o.Save}, {"weights", o.Weights}, {"csv", o.CSV}, curve(endings[0]), curve(endings[1])}
	read := []file{{"start", o.Start}, {"load", o.Load}, {"beside", o.Beside.Path}}
	if o.tasks != nil {
		read = append(read, file{"data", o.tasks.path})
	}
	for i, a := range written {
		for _, b := range append(written[i+1:len(written):len(written)], read...) {
			replaces := a.name == "save" && (b.name == "load" || b.name == "start") || a.name == "weights" && b.name == "start"
			if !replaces && samePath(a.path, b.path) {
				return fmt.Errorf("train: %s and %s are the same file, %s", a.name, b.name, a.path)
			}
		}
	}
	return nil
}

// samePath reports whether two paths lead to one file, which need not exist. "" is no path.
func samePath(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	if errX == nil && errY == nil {
		return os.SameFile(x, y) && x.Mode().IsRegular()
	}
	return filepath.Clean(a) == filepath.Clean(b)
}
