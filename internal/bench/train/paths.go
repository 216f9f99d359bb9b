package train

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/files"
)

// checkPaths returns an error if a file would be written over one that is read, or written too.
// What continues a training may replace the file that it began with.
func (o *Options) checkPaths() error {
	type file struct{ name, path string }
	written := []file{{"save", o.Save}, {"weights", o.Weights}, {"best", o.Best}, {"csv", o.CSV}, {"curve", drawingFile(o.Curve)}, {"picture", drawingFile(o.Picture)}}
	read := []file{{"start", o.Start}, {"load", o.Load}, {"beside", o.Beside.Path}}
	if o.tasks != nil {
		read = append(read, file{"data", o.tasks.path})
	}
	for i, a := range written {
		for _, b := range append(written[i+1:len(written):len(written)], read...) {
			replaces := a.name == "save" && (b.name == "load" || b.name == "start") || a.name == "weights" && b.name == "start"
			if !replaces && files.Same(a.path, b.path) {
				return fmt.Errorf("train: %s and %s are the same file, %s", a.name, b.name, a.path)
			}
		}
	}
	return nil
}
