package safetensors_test

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/safetensors"
)

// A file in memory, and where one could be written.
func ExampleRead() {
	header := `{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  `
	data := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...)
	data = append(data, make([]byte, 8)...)
	f, err := safetensors.Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range f.Tensors() {
		fmt.Println(t.Name, t.DType, t.Shape)
	}
	_, err = safetensors.Read(bytes.NewReader(data), int64(len(data)-1))
	fmt.Println(err)
	fmt.Println(safetensors.CanCreate(filepath.Join(os.TempDir(), "x.safetensors")))
	// Output:
	// x F32 [2]
	// safetensors: tensor "x": data_offsets [0, 8] run past the 7 bytes of data that the file has
	// <nil>
}
