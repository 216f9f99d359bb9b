package safetensors_test

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/safetensors"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// A file is written tensor by tensor, appears under its name when it is
// complete, and is read tensor by tensor.
func Example() {
	dir := must(os.MkdirTemp("", "safetensors"))
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "x.safetensors")

	w := must(safetensors.Create(path, []safetensors.Tensor{{Name: "q", DType: safetensors.F16, Shape: []int{2, 3}}}, nil))
	defer w.Close() // removes what was not committed
	must(must(w.Tensor("q")).Write(make([]byte, 12)))
	check(w.Commit())

	f := must(safetensors.Open(path))
	defer f.Close()
	for _, t := range f.Tensors() {
		fmt.Println(t.Name, t.DType, t.Shape, t.Bytes())
	}
	// Output: q F16 [2 3] 12
}

// A file in memory, and where one could be written.
func ExampleRead() {
	header := `{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  `
	data := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...)
	data = append(data, make([]byte, 8)...)
	f := must(safetensors.Read(bytes.NewReader(data), int64(len(data))))
	for _, t := range f.Tensors() {
		fmt.Println(t.Name, t.DType, t.Shape)
	}
	_, err := safetensors.Read(bytes.NewReader(data), int64(len(data)-1))
	fmt.Println(err)
	fmt.Println(safetensors.CanCreate(filepath.Join(os.TempDir(), "x.safetensors")))
	// Output:
	// x F32 [2]
	// safetensors: tensor "x": data_offsets [0, 8] run past the 7 bytes of data that the file has
	// <nil>
}
