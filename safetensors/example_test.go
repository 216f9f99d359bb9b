package safetensors_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/safetensors"
)

// A file is written tensor by tensor, appears under its name when it is
// complete, and is read tensor by tensor.
func Example() {
	dir, err := os.MkdirTemp("", "safetensors")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "x.safetensors")

	w, err := safetensors.Create(path, []safetensors.Tensor{{Name: "q", DType: safetensors.F16, Shape: []int{2, 3}}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close() // removes what was not committed
	q, err := w.Tensor("q")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := q.Write(make([]byte, 12)); err != nil {
		log.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		log.Fatal(err)
	}

	f, err := safetensors.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	for _, t := range f.Tensors() {
		fmt.Println(t.Name, t.DType, t.Shape, t.Bytes())
	}
	// Output: q F16 [2 3] 12
}
