package safetensors

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzRead says that no file makes Read panic, that a refusal is one line, and
// that a file that was accepted covers its data exactly and survives being
// written and read again.
func FuzzRead(f *testing.F) {
	f.Add(build(good, 21))
	f.Add(build(`{"q":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}}`, 4))
	f.Add(build(`{}`, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error is not one line: %q", err)
			}
			return
		}
		var total int64
		for _, x := range file.Tensors() {
			total += x.Bytes()
			if err := file.ReadAt(x, make([]byte, x.Bytes()), 0); err != nil {
				t.Error(err)
			}
		}
		if file.data+total != int64(len(data)) {
			t.Errorf("header of %d and data of %d bytes are not the file of %d", file.data, total, len(data))
		}
		path := filepath.Join(t.TempDir(), "x")
		if err := write(path, file.Tensors(), file.Metadata); err != nil {
			t.Fatal(err)
		}
		again, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		for _, x := range file.Tensors() {
			y, ok := again.Tensor(x.Name)
			if !ok || y.DType != x.DType || formatShape(y.Shape) != formatShape(x.Shape) {
				t.Errorf("%+v came back as %+v", x, y)
			}
		}
	})
}
